//! How items are written down: JSON, and the credentials beside it, sealed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::prepull::item::{Id, Item, Reason, State};
use crate::prepull::secret::Sealer;
use crate::prepull::time::Time;

#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    item: &'a Item,
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
}

#[derive(Deserialize)]
struct Found {
    #[serde(flatten)]
    item: Item,
    sealed: Option<String>,
}

/// The form of an item in the store.
pub(super) fn encode(item: &Item, sealer: &Sealer) -> anyhow::Result<Vec<u8>> {
    let sealed = match item.spec.secrets.is_empty() {
        true => None,
        false => Some(STANDARD.encode(sealer.seal(&item.spec.secrets, &bound_to(item.id))?)),
    };
    Ok(serde_json::to_vec(&Written { item, sealed })?)
}

/// Reads it back. An item whose credentials cannot be read any more is there all the same, and says so.
pub(super) fn decode(data: &[u8], sealer: &Sealer, now: Time) -> anyhow::Result<Item> {
    let Found { mut item, sealed } = serde_json::from_slice(data)?;
    let Some(sealed) = sealed else { return Ok(item) };
    let opened = STANDARD
        .decode(sealed)
        .map_err(|_| "they are damaged".to_owned())
        .and_then(|sealed| sealer.unseal(&sealed, &bound_to(item.id)).map_err(|error| error.to_string()));
    match opened {
        Ok(secrets) => item.spec.secrets = secrets,
        Err(error) if !item.is_finished() => {
            let message = format!("its credentials cannot be read: {error}; ask for the image again");
            item.status.finished = Some(now);
            item.status.until = None;
            item.status.turn(State::Failed, Reason::Unauthorized, message, now);
        }
        Err(_) => {}
    }
    Ok(item)
}

/// Sealed credentials are of use for their own item only.
fn bound_to(id: Id) -> [u8; 8] {
    id.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepull::spec::Spec;

    #[test]
    fn credentials_come_back_and_are_nowhere_in_clear() {
        let dir = tempfile::tempdir().unwrap();
        let sealer = Sealer::open(dir.path()).unwrap();
        let json =
            r#"{"image":"a","secrets":[{"registry":"a.example","username":"u","password":"hunter2"}]}"#;
        let spec: Spec = serde_json::from_str(json).unwrap();
        let item = Item::new(7, "a".into(), "a".into(), spec, Time(0));
        let data = encode(&item, &sealer).unwrap();
        assert!(!String::from_utf8_lossy(&data).contains("hunter2"));
        assert!(!String::from_utf8_lossy(&data).contains(&STANDARD.encode("hunter2")));
        assert_eq!(decode(&data, &sealer, Time(1)).unwrap(), item);

        let other = tempfile::tempdir().unwrap();
        let other = Sealer::open(other.path()).unwrap();
        let without = decode(&data, &other, Time(1)).unwrap();
        assert_eq!((without.status.state, without.status.reason), (State::Failed, Reason::Unauthorized));
        assert!(without.status.message.contains("ask for the image again"), "{}", without.status.message);
    }
}
