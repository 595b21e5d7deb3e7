//! The runtime as a whole, and its images.

use k8s_cri::v1::{
    ImageFilter, ImageFsInfoRequest, ImageSpec, ImageStatusRequest, ListImagesRequest, PullImageRequest,
    RemoveImageRequest, RuntimeConfigRequest, StatusRequest, UpdateRuntimeConfigRequest, VersionRequest,
};

use super::Run;
use crate::lab::images::{BUSYBOX, WEB};

pub(super) fn spec(run: &Run, name: &str) -> ImageSpec {
    ImageSpec { image: format!("{}/{name}", run.registry), ..ImageSpec::default() }
}

/// Makes a first run like every later one: the sandbox's image stays when all pods are gone.
pub(super) async fn pull_pause(run: &mut Run) {
    let pause = PullImageRequest { image: Some(spec(run, "pause:3.9")), ..PullImageRequest::default() };
    run.cri.images.pull_image(pause).await.expect("pull the sandbox's image");
}

pub(super) async fn about_the_runtime(run: &mut Run) {
    let Run { cri, transcript, .. } = run;
    transcript.ok("Version", cri.runtime.version(VersionRequest { version: "v1".into() }).await);
    transcript.ok("Status", cri.runtime.status(StatusRequest { verbose: false }).await);
    // The verbose answer holds the whole configuration, so this compares a large message.
    transcript.ok("Status, verbose", cri.runtime.status(StatusRequest { verbose: true }).await);
    transcript.any("RuntimeConfig", cri.runtime.runtime_config(RuntimeConfigRequest::default()).await);
    let update = UpdateRuntimeConfigRequest::default();
    transcript.any("UpdateRuntimeConfig", cri.runtime.update_runtime_config(update).await);
    transcript.ok("ImageFsInfo", cri.images.image_fs_info(ImageFsInfoRequest::default()).await);
}

pub(super) async fn pull_and_look(run: &mut Run) {
    for name in [BUSYBOX, WEB] {
        let image = spec(run, name);
        let pull = PullImageRequest { image: Some(image.clone()), ..PullImageRequest::default() };
        run.transcript.ok("PullImage", run.cri.images.pull_image(pull.clone()).await);
        run.transcript.ok("PullImage again", run.cri.images.pull_image(pull).await);
        let status = ImageStatusRequest { image: Some(image.clone()), verbose: true };
        run.transcript.ok("ImageStatus", run.cri.images.image_status(status).await);
        let list = ListImagesRequest { filter: Some(ImageFilter { image: Some(image) }) };
        // The runtime lists in no order.
        let mut list = run.cri.images.list_images(list).await.expect("ListImages").into_inner().images;
        list.sort_by(|a, b| a.id.cmp(&b.id));
        assert!(!list.is_empty(), "the pulled image is listed");
        run.transcript.note("ListImages", list);
    }
    let missing = PullImageRequest { image: Some(spec(run, "no/such:image")), ..PullImageRequest::default() };
    run.transcript.err("PullImage of nothing", run.cri.images.pull_image(missing).await);
    let invalid = ImageSpec { image: "In valid".into(), ..ImageSpec::default() };
    let invalid = PullImageRequest { image: Some(invalid), ..PullImageRequest::default() };
    run.transcript.err("PullImage of a bad name", run.cri.images.pull_image(invalid).await);
}

pub(super) async fn remove(run: &mut Run) {
    for name in [BUSYBOX, WEB] {
        let image = Some(spec(run, name));
        let request = RemoveImageRequest { image: image.clone() };
        run.transcript.ok("RemoveImage", run.cri.images.remove_image(request.clone()).await);
        run.transcript.ok("RemoveImage again", run.cri.images.remove_image(request).await);
        let status = ImageStatusRequest { image, verbose: false };
        run.transcript.ok("ImageStatus of nothing", run.cri.images.image_status(status).await);
    }
}
