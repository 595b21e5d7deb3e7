//! Reads the query of a request.

use super::Problem;
use crate::image::Reference;
use crate::prepull::item::{Id, Item, State};

/// The keys and values of a query.
#[derive(Debug, Default)]
pub(in crate::admin) struct Query(Vec<(String, String)>);

/// Which items are wanted: those to which everything applies that is given.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    ids: Vec<Id>,
    owners: Vec<String>,
    images: Vec<String>,
    states: Vec<State>,
}

/// Reads the number of an item.
pub(super) fn id(text: &str) -> Result<Id, Problem> {
    text.parse().map_err(|_| Problem::mistake("id: expected the number of an item".into()))
}

// === impl Query ===

impl Query {
    /// Reads a query in which nothing but these keys may be.
    pub(in crate::admin) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let pairs: Vec<(String, String)> =
            form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
        if let Some((key, _)) = pairs.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            return Err(Problem::mistake(format!("{key}: unknown; known are {}", known.join(", "))));
        }
        Ok(Self(pairs))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The last value of a key.
    pub(in crate::admin) fn last(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether a flag is set. The last word counts.
    pub(super) fn flag(&self, key: &str) -> Result<bool, Problem> {
        match self.last(key) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::mistake(format!("{key}: expected true or false"))),
        }
    }

    /// Which items are wanted. A key that is given several times takes what any of its values takes.
    pub(super) fn wanted(self) -> Result<Wanted, Problem> {
        let mut wanted = Wanted::default();
        for (key, value) in self.0 {
            match key.as_str() {
                "id" => wanted.ids.push(id(&value)?),
                "owner" => wanted.owners.push(value),
                "image" => match Reference::parse(&value) {
                    Ok(image) => wanted.images.push(image.with_default_tag().to_string()),
                    Err(error) => return Err(Problem::mistake(format!("image: {error}"))),
                },
                "state" => match State::ALL.into_iter().find(|state| state.name() == value) {
                    Some(state) => wanted.states.push(state),
                    None => {
                        let known = State::ALL.map(State::name).join(", ");
                        return Err(Problem::mistake(format!("state: expected one of {known}")));
                    }
                },
                _ => {}
            }
        }
        wanted.ids.sort_unstable();
        Ok(wanted)
    }
}

// === impl Wanted ===

impl Wanted {
    pub(super) fn takes(&self, item: &Item) -> bool {
        let any = |is_empty: bool, found: bool| is_empty || found;
        any(self.ids.is_empty(), self.ids.binary_search(&item.id).is_ok())
            && any(self.owners.is_empty(), self.owners.contains(&item.spec.owner))
            && any(self.states.is_empty(), self.states.contains(&item.status.state))
            && any(
                self.images.is_empty(),
                self.images.contains(&item.image) || self.images.contains(&item.source),
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepull::spec::Spec;
    use crate::prepull::time::Time;

    #[test]
    fn items_are_chosen_by_all_that_is_given() {
        let known = ["owner", "state", "image", "id"];
        let image = "docker.io/library/nginx:latest".to_owned();
        let item = Item::new(7, image.clone(), image, Spec::of("nginx"), Time(0));
        for (query, taken) in [
            ("", true),
            ("id=7", true),
            ("id=9&id=7", true),
            ("id=9", false),
            ("image=nginx", true),
            ("image=nginx:1", false),
            ("owner=cli&state=waiting", true),
            ("owner=cli&state=failed", false),
            ("owner=c%6ci", true),
        ] {
            let wanted = Query::parse(Some(query), &known).unwrap().wanted().unwrap();
            assert_eq!(wanted.takes(&item), taken, "{query}");
        }
        for wrong in ["id=x", "state=soon", "image=UPPER"] {
            assert!(Query::parse(Some(wrong), &known).unwrap().wanted().is_err(), "{wrong}");
        }
        assert!(Query::parse(Some("ownr=a"), &known).is_err());
        assert!(Query::parse(Some("dryRun=yes"), &["dryRun"]).unwrap().flag("dryRun").is_err());
    }
}
