//! What crisp does with the calls it looks at. Each [`Feature`] reads the request and adds its part to one plan;
//! features do not know of each other, and their order is written here, in [`Features::new`].

mod image_spec;
mod images;
mod links;
mod pull;
mod record;
mod sandbox;
mod shield;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::container::links::Links;
use crate::container::recorder::Recorder;
use crate::container::shield::Shield;
use crate::cri::plan::{OnReply, Step};
use crate::cri::{Call, Forward, Plan, Policy, RuntimeCall, read};
use crate::error::Error;
use crate::image::AciNames;
use crate::metrics::Metrics;
use crate::prepull::Sight;
use crate::pull::Coordinator;

/// One thing that crisp does with a call.
pub trait Feature: fmt::Debug + Send + Sync {
    /// The name in metrics and logs.
    fn name(&self) -> &'static str;

    /// What becomes of a call when [`Feature::plan`] fails.
    fn policy(&self) -> Policy;

    /// Reads the call and adds to the plan. `Some` ends planning: the call is answered by that plan.
    fn plan(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error>;
}

/// The features by the kind of call they look at, in the order in which they act.
#[derive(Debug, Clone, Default)]
pub struct Features {
    /// PullImage.
    pub pull: Vec<Arc<dyn Feature>>,
    /// ImageStatus.
    pub image_status: Vec<Arc<dyn Feature>>,
    /// The other calls of the image service.
    pub image: Vec<Arc<dyn Feature>>,
    /// Calls about containers.
    pub container: Vec<Arc<dyn Feature>>,
    /// Calls about sandboxes.
    pub sandbox: Vec<Arc<dyn Feature>>,
}

/// What the features work with.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "handles, one of them a closure")]
pub struct Parts {
    /// Where everything is counted.
    pub metrics: Arc<Metrics>,
    /// Which names are ACI images by themselves.
    pub aci: AciNames,
    /// Who makes many pulls one.
    pub coordinator: Coordinator,
    /// What the kubelet is told of images.
    pub sight: Sight,
    /// Calls at the runtime, made on the proxy's thread.
    pub call: RuntimeCall,
    /// Which containers are shown with another hash, if any may be.
    pub shield: Option<Shield>,
    /// Who records containers, if they are recorded.
    pub recorder: Option<Recorder>,
    /// What pods may ask of Services, unless that is off.
    pub links: Option<Links>,
}

impl Features {
    /// The features of this release. What a pod's specs rule out is refused before anybody else looks at the call.
    pub fn new(parts: Parts) -> Self {
        let Parts { metrics, aci, coordinator, sight, call, shield, links, recorder } = parts;
        let images: Arc<dyn Feature> = Arc::new(images::Images::new(sight.clone(), call, metrics.clone()));
        let specs: Arc<dyn Feature> = Arc::new(image_spec::ImageSpecs::new(aci));
        let mut features = Self::observing(&metrics);
        features.pull = vec![specs.clone(), Arc::new(pull::Pulls::new(coordinator, sight, metrics.clone()))];
        features.image_status = vec![specs.clone(), images.clone()];
        features.image = vec![images];
        features.container.push(specs);
        if let Some(shield) = shield {
            features.container.push(Arc::new(shield::Hashes::new(shield)));
        }
        if let Some(links) = links {
            let links: Arc<dyn Feature> = Arc::new(links::ServiceLinks::new(links));
            features.container.push(links.clone());
            features.sandbox.push(links);
        }
        // Last: whoever reads records in replies acts before they are taken out.
        if let Some(recorder) = recorder {
            features.container.push(Arc::new(record::Records::new(recorder, metrics)));
        }
        features
    }

    /// The names of those that image calls alone never reach, for people.
    pub fn beyond_images(&self) -> String {
        let reached = |name| {
            [&self.pull, &self.image_status, &self.image].into_iter().flatten().any(|it| it.name() == name)
        };
        let mut names: Vec<_> =
            self.container.iter().chain(&self.sandbox).map(|feature| feature.name()).collect();
        names.retain(|name| !reached(*name) && *name != sandbox::NAME);
        names.sort_unstable();
        names.dedup();
        names.join(", ")
    }

    /// Features that change nothing.
    pub fn observing(metrics: &Arc<Metrics>) -> Self {
        Self {
            pull: Vec::new(),
            image_status: Vec::new(),
            image: Vec::new(),
            container: Vec::new(),
            sandbox: vec![Arc::new(sandbox::Observer::new(metrics.clone()))],
        }
    }
}

/// The feature that records containers, alone.
pub fn records(recorder: Recorder, metrics: &Arc<Metrics>) -> Arc<dyn Feature> {
    Arc::new(record::Records::new(recorder, metrics.clone()))
}

/// A step that reads each reply message as a view and counts it.
fn observe_replies<V: Message + Default>(
    feature: &'static str,
    call: &Call,
    metrics: &Arc<Metrics>,
) -> Step<OnReply> {
    let (metrics, method) = (metrics.clone(), call.method);
    let observe = move |message: &Bytes| {
        read::<V>(message)?;
        metrics.read_reply(method);
        Ok(())
    };
    Step { feature, policy: Policy::Open, action: OnReply::Observe(Box::new(observe)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Named(&'static str);

    impl Feature for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn policy(&self) -> Policy {
            Policy::Open
        }

        fn plan(&self, _: &Call, _: &mut Forward) -> Result<Option<Plan>, Error> {
            Ok(None)
        }
    }

    /// Broke: the log named a feature twice, one that image calls do reach, and one that is nobody's business.
    #[test]
    fn what_image_calls_never_reach_is_named_once() {
        let named = |name| -> Arc<dyn Feature> { Arc::new(Named(name)) };
        let mut features = Features::observing(&Metrics::new());
        features.pull.push(named("pulls and containers"));
        features.container.extend(["pulls and containers", "records", "links"].map(named));
        features.sandbox.push(named("links"));
        assert_eq!(features.beyond_images(), "links, records");
    }
}
