//! Features made of a closure, to try the interception frame with.

use std::fmt;
use std::sync::Arc;

use crisp::cri::{Call, Forward, Plan, Policy};
use crisp::error::{Error, Kind, Origin};
use crisp::intercept::{Feature, Features};

type Planner = dyn Fn(&Call, &mut Forward) -> Result<Option<Plan>, Error> + Send + Sync;

struct Closure {
    name: &'static str,
    policy: Policy,
    plan: Box<Planner>,
}

/// A feature that plans by a closure.
pub(crate) fn feature(
    name: &'static str,
    policy: Policy,
    plan: impl Fn(&Call, &mut Forward) -> Result<Option<Plan>, Error> + Send + Sync + 'static,
) -> Arc<dyn Feature> {
    Arc::new(Closure { name, policy, plan: Box::new(plan) })
}

/// The same features for every kind of call.
pub(crate) fn everywhere(features: Vec<Arc<dyn Feature>>) -> Features {
    Features {
        pull: features.clone(),
        image_status: features.clone(),
        image: features.clone(),
        container: features.clone(),
        sandbox: features,
    }
}

/// What a feature says when a test wants it to fail.
pub(crate) fn failure() -> Error {
    Error::new(Kind::Precondition, Origin::Crisp, "made to fail")
}

impl Feature for Closure {
    fn name(&self) -> &'static str {
        self.name
    }

    fn policy(&self) -> Policy {
        self.policy
    }

    fn plan(&self, call: &Call, forward: &mut Forward) -> Result<Option<Plan>, Error> {
        (self.plan)(call, forward)
    }
}

impl fmt::Debug for Closure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
