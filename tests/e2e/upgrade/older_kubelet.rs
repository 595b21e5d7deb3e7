//! What makes containers look as an older kubelet leaves them. Kubelets up to 1.30 do not run behind crisp, and one that
//! does has to be kept from killing its own containers meanwhile.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use crisp::cri::plan::{OnReply, Step};
use crisp::cri::{Forward, Method, Policy};
use crisp::error::Error;
use crisp::intercept::Features;
use crisp::wire::{Patch, entry};

use crate::support::feature::{failure, feature};
use crate::support::in_process::InProcess;

const HASH: &str = "io.kubernetes.container.hash";
/// Of a CreateContainerRequest and of a ContainerStatusResponse.
const ANNOTATIONS: [[u32; 2]; 2] = [[2, 10], [1, 13]];

/// Of a CreateContainerRequest.
const USERS_IMAGE: [u32; 3] = [2, 2, 18];

const NAME: &str = "older-kubelet";

/// A proxy in front of a runtime. Containers made through it carry another hash than the one that the kubelet
/// computed, and to that kubelet it answers its own.
#[derive(Debug)]
pub(super) struct OlderKubelet {
    proxy: InProcess,
}

impl OlderKubelet {
    /// `names_images`: as kubelets from 1.28 on say the user's name of an image, and containerd from 2.0 on keeps it.
    pub(super) fn in_front_of(runtime: &Path, names_images: bool) -> Self {
        let container = feature(NAME, Policy::Closed, move |call, forward| {
            match call.method {
                Method::CREATE_CONTAINER => {
                    let mut action = replace(&call.message, ANNOTATIONS[0])?;
                    if !names_images {
                        action = action.remove(USERS_IMAGE);
                    }
                    forward.request.push(Step { feature: NAME, policy: Policy::Closed, action });
                }
                Method::CONTAINER_STATUS => answer_its_own(forward),
                _ => {}
            }
            Ok(None)
        });
        let proxy = InProcess::with(|_, _| Features { container: vec![container], ..Features::default() });
        std::os::unix::fs::symlink(runtime, proxy.runtime_socket()).expect("lead to the runtime");
        Self { proxy }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.proxy.socket()
    }

    pub(super) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }
}

fn answer_its_own(forward: &mut Forward) {
    let action = OnReply::Map(Box::new(|reply| replace(reply, ANNOTATIONS[1])));
    forward.reply.push(Step { feature: NAME, policy: Policy::Closed, action });
}

/// Makes a hash another one, or that one the first again.
fn replace(message: &Bytes, annotations: [u32; 2]) -> Result<Patch, Error> {
    let hash = entry(message, annotations, HASH)
        .map_err(|_| failure())?
        .and_then(|hash| std::str::from_utf8(hash).ok());
    let hash = hash.and_then(|hash| u32::from_str_radix(hash, 16).ok());
    Ok(hash.map_or_else(Patch::new, |hash| {
        Patch::new().set_entry(annotations, HASH, format!("{:x}", hash ^ 0x5eed_5eed))
    }))
}
