//! What would be pulled, without keeping any of it.
//!
//! The runtime is let begin the pull under a lease, as it alone knows mirrors and certificates, and is stopped as soon
//! as the manifest is there. What came until then is kept as that of any pull that was given up, and then goes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, StreamExt as _};
use serde::{Deserialize, Serialize};
use tonic::Code;

use crate::image::Reference;
use crate::prepull::attempt::Tools;
use crate::prepull::item::Item;
use crate::prepull::notes::Notes;
use crate::prepull::park::{self, Parking};
use crate::prepull::queue::Outcome;
use crate::prepull::secret::{Credential, matching};
use crate::prepull::spec::Wanted;
use crate::prepull::time::Time;
use crate::prepull::verdict;
use crate::pull::own::OwnRequest;
use crate::pull::{Class, Request};

/// How many images are looked at at a time, and for how long each.
const ABREAST: usize = 4;
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// What would be done for an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// The image under the name that pods use.
    pub image: String,
    /// The name it is pulled by.
    pub source: String,
    /// Whether it is there already.
    pub present: bool,
    /// Compressed bytes of all its layers, if they can be told.
    pub bytes_total: Option<u64>,
    /// Those of them that are not there.
    pub bytes_missing: Option<u64>,
    /// More to say.
    pub note: String,
}

/// Looks at images.
pub(super) async fn run(tools: &Arc<Tools>, notes: &Notes, wanted: Vec<Wanted>) -> Vec<DryRun> {
    let looks = wanted.into_iter().map(|wanted| async move {
        let (image, source) = (wanted.image.clone(), wanted.source.clone());
        let unknown = |note: String| DryRun {
            image: image.clone(),
            source: source.clone(),
            present: false,
            bytes_total: None,
            bytes_missing: None,
            note,
        };
        look(tools, notes, wanted).await.unwrap_or_else(unknown)
    });
    stream::iter(looks).buffered(ABREAST).collect().await
}

async fn look(tools: &Arc<Tools>, notes: &Notes, wanted: Wanted) -> Result<DryRun, String> {
    let Wanted { image, source, spec } = wanted;
    let found = |present, bytes_total, bytes_missing, note: &str| DryRun {
        image: image.clone(),
        source: source.clone(),
        present,
        bytes_total,
        bytes_missing,
        note: note.into(),
    };
    let there = tools.images.status(&image).await.map_err(|error| error.message().to_owned())?;
    if there.is_some() {
        return Ok(found(true, None, Some(0), "it is there"));
    }
    if !tools.coordinator.supports_leases().await {
        return Ok(found(
            false,
            None,
            None,
            "this runtime does not tell how large an image is before it is pulled",
        ));
    }
    let reference = Reference::parse(&source).map_err(|error| error.to_string())?;
    let item = Item::new(0, image.clone(), source.clone(), spec, Time::now());
    let credentials = matching(&item.spec.secrets, &reference);
    let tries: Vec<Option<&Credential>> = match credentials.is_empty() {
        true => vec![None],
        false => credentials.into_iter().map(Some).collect(),
    };
    let mut refusal = String::new();
    for credential in tries {
        match measure(tools, notes, &item, &reference, credential).await {
            Ok((total, missing)) => return Ok(found(false, Some(total), Some(missing), "")),
            Err(words) => refusal = words,
        }
    }
    Err(refusal)
}

/// Total and missing bytes of an image.
async fn measure(
    tools: &Arc<Tools>,
    notes: &Notes,
    item: &Item,
    reference: &Reference,
    credential: Option<&Credential>,
) -> Result<(u64, u64), String> {
    let mut parking = Parking::prepare(tools, item).await.map_err(words_of)?;
    let note = match parking.trace().filter(|_| credential.is_some()) {
        Some(trace) => Some(notes.note(trace).await.ok_or("the queue cannot be written")?),
        None => None,
    };
    let began = SystemTime::now();
    let auth = credential.map(Credential::auth_config);
    let request = Request::own(OwnRequest {
        reference,
        class: Class::Urgent,
        credential: auth.as_ref(),
        namespace: None,
        labels: Default::default(),
        annotations: Default::default(),
    });
    let mut pull = tools.coordinator.own(request).await;
    // However long the registry takes, it is tidied up afterwards.
    let late = tokio::time::sleep(LIMIT);
    tokio::pin!(late);
    let measured = loop {
        tokio::select! {
            biased;
            landed = pull.landed() => {
                if landed.reply.code() != Code::Ok {
                    break Err(words_of(verdict::of_reply(&landed.reply)));
                }
                // So small that it was there before it could be stopped.
                let Some(lease) = &landed.lease else { break Err("its size cannot be told".into()) };
                break match tools.containerd.fetched(lease.id(), began).await {
                    Ok(Some(brought)) => Ok((brought.size, brought.fetched)),
                    Ok(None) => Err("its manifest does not tell sizes".into()),
                    Err(error) => Err(error.to_string()),
                };
            }
            () = &mut late => break Err("the registry did not answer in time".into()),
            () = tokio::time::sleep(LOOK) => {
                let Some(progress) = pull.progress().await else { continue };
                let Some(total) = progress.bytes_total else { continue };
                break Ok((total, total.saturating_sub(progress.bytes_done)));
            }
        }
    };
    pull.cancel();
    parking.clean_up(tools).await.map_err(|error| words_of(park::still_there(error)))?;
    if let Some(note) = note {
        notes.cleaned(note).await;
    }
    measured
}

fn words_of(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failed { message, .. } | Outcome::Later { message, .. } => message,
        Outcome::Done(done) => done.note,
    }
}
