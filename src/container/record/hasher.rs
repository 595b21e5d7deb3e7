//! Keyed hashes of what may be secret.

use ring::hmac::{Context, Tag};

use super::node::{HASH_BYTES, Node};
use crate::container::keys::Key;

/// Hashes values of one container. The same value in another container, or in another place of the same one, has another
/// hash, so that nobody can tell from records who shares a password with whom.
pub(super) struct Hasher(Context);

// === impl Hasher ===

impl Hasher {
    pub(super) fn new(key: &Key, pod_uid: &str, container: &str) -> Self {
        let mut context = Context::with_key(&key.hmac());
        for part in ["crisp: record of a container", pod_uid, container] {
            add(&mut context, part.as_bytes());
        }
        Self(context)
    }

    /// The hash of a value: of which field, and of which item in it.
    pub(super) fn hash(&self, field: &str, item: &[u8], value: &[u8]) -> Node {
        self.hash_all(field, item, std::iter::once(value))
    }

    pub(super) fn hash_all<'a>(
        &self,
        field: &str,
        item: &[u8],
        values: impl IntoIterator<Item = &'a [u8]>,
    ) -> Node {
        let mut context = self.0.clone();
        add(&mut context, field.as_bytes());
        add(&mut context, item);
        values.into_iter().for_each(|value| add(&mut context, value));
        Node::Hash(cut(&context.sign()))
    }
}

/// With its length, so that no two lists of parts are the same bytes.
fn add(context: &mut Context, part: &[u8]) {
    context.update(&(part.len() as u64).to_le_bytes());
    context.update(part);
}

fn cut(tag: &Tag) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    hash.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
    hash
}
