//! The methods of the CRI by name, for metric labels and routing.
//!
//! This list bounds what can become a metric label; it does not bound what is forwarded.

/// A method of CRI 1.37, or "other".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method(u8);

/// Which of the two runtime connections a path belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// `runtime.v1.ImageService` (and its older versions).
    Image,
    /// Everything else, known or not.
    Runtime,
}

macro_rules! methods {
    ($($constant:ident = $service:literal / $name:literal,)*) => {
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "only numbers the list")]
        enum Index { $($constant,)* OTHER }

        impl Method {
            $(
                #[doc = concat!("`/runtime.v1.", $service, "/", $name, "`")]
                pub const $constant: Self = Self(Index::$constant as u8);
            )*
            /// Anything that is not a method of CRI 1.37.
            pub const OTHER: Self = Self(Index::OTHER as u8);

            /// Every method, [`Method::OTHER`] last; a method's position is its [`Method::index`].
            pub const ALL: &[Self] = &[$(Self::$constant,)* Self::OTHER];

            const NAMES: &[&'static str] = &[$($name,)* "other"];
            const PATHS: &[&'static str] = &[$(concat!("/runtime.v1.", $service, "/", $name),)* "other"];

            /// Finds the method of an HTTP/2 path.
            pub fn of_path(path: &str) -> Self {
                match path {
                    $(concat!("/runtime.v1.", $service, "/", $name) => Self::$constant,)*
                    _ => Self::OTHER,
                }
            }
        }
    };
}

methods! {
    VERSION = "RuntimeService"/"Version",
    RUN_POD_SANDBOX = "RuntimeService"/"RunPodSandbox",
    STOP_POD_SANDBOX = "RuntimeService"/"StopPodSandbox",
    REMOVE_POD_SANDBOX = "RuntimeService"/"RemovePodSandbox",
    POD_SANDBOX_STATUS = "RuntimeService"/"PodSandboxStatus",
    LIST_POD_SANDBOX = "RuntimeService"/"ListPodSandbox",
    STREAM_POD_SANDBOXES = "RuntimeService"/"StreamPodSandboxes",
    CREATE_CONTAINER = "RuntimeService"/"CreateContainer",
    START_CONTAINER = "RuntimeService"/"StartContainer",
    STOP_CONTAINER = "RuntimeService"/"StopContainer",
    REMOVE_CONTAINER = "RuntimeService"/"RemoveContainer",
    LIST_CONTAINERS = "RuntimeService"/"ListContainers",
    STREAM_CONTAINERS = "RuntimeService"/"StreamContainers",
    CONTAINER_STATUS = "RuntimeService"/"ContainerStatus",
    UPDATE_CONTAINER_RESOURCES = "RuntimeService"/"UpdateContainerResources",
    REOPEN_CONTAINER_LOG = "RuntimeService"/"ReopenContainerLog",
    EXEC_SYNC = "RuntimeService"/"ExecSync",
    EXEC = "RuntimeService"/"Exec",
    ATTACH = "RuntimeService"/"Attach",
    PORT_FORWARD = "RuntimeService"/"PortForward",
    CONTAINER_STATS = "RuntimeService"/"ContainerStats",
    LIST_CONTAINER_STATS = "RuntimeService"/"ListContainerStats",
    STREAM_CONTAINER_STATS = "RuntimeService"/"StreamContainerStats",
    POD_SANDBOX_STATS = "RuntimeService"/"PodSandboxStats",
    LIST_POD_SANDBOX_STATS = "RuntimeService"/"ListPodSandboxStats",
    STREAM_POD_SANDBOX_STATS = "RuntimeService"/"StreamPodSandboxStats",
    UPDATE_RUNTIME_CONFIG = "RuntimeService"/"UpdateRuntimeConfig",
    STATUS = "RuntimeService"/"Status",
    CHECKPOINT_CONTAINER = "RuntimeService"/"CheckpointContainer",
    GET_CONTAINER_EVENTS = "RuntimeService"/"GetContainerEvents",
    LIST_METRIC_DESCRIPTORS = "RuntimeService"/"ListMetricDescriptors",
    LIST_POD_SANDBOX_METRICS = "RuntimeService"/"ListPodSandboxMetrics",
    STREAM_POD_SANDBOX_METRICS = "RuntimeService"/"StreamPodSandboxMetrics",
    RUNTIME_CONFIG = "RuntimeService"/"RuntimeConfig",
    UPDATE_POD_SANDBOX_RESOURCES = "RuntimeService"/"UpdatePodSandboxResources",
    CHECKPOINT_POD = "RuntimeService"/"CheckpointPod",
    RESTORE_POD = "RuntimeService"/"RestorePod",
    LIST_IMAGES = "ImageService"/"ListImages",
    STREAM_IMAGES = "ImageService"/"StreamImages",
    IMAGE_STATUS = "ImageService"/"ImageStatus",
    PULL_IMAGE = "ImageService"/"PullImage",
    REMOVE_IMAGE = "ImageService"/"RemoveImage",
    IMAGE_FS_INFO = "ImageService"/"ImageFsInfo",
}

impl Method {
    /// The method's position in [`Method::ALL`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The bare name, as in metric labels.
    pub fn name(self) -> &'static str {
        Self::NAMES.get(self.index()).copied().unwrap_or("other")
    }

    /// The HTTP/2 path, or `other`.
    pub fn path(self) -> &'static str {
        Self::PATHS.get(self.index()).copied().unwrap_or("other")
    }
}

impl Service {
    /// Which connection a path belongs to. Older versions of the image service count too, so that a
    /// separate image endpoint gets all of its own.
    pub fn of_path(path: &str) -> Self {
        let service = path.strip_prefix("/runtime.").and_then(|rest| rest.split('/').next());
        match service.and_then(|name| name.split_once('.')) {
            Some((_, "ImageService")) => Self::Image,
            _ => Self::Runtime,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_that_of_cri_1_37() {
        assert_eq!(Method::ALL.len(), 43 + 1);
        for (index, method) in Method::ALL.iter().enumerate() {
            assert_eq!(method.index(), index);
            assert_eq!(Method::of_path(method.path()), *method);
        }
        assert_eq!(Method::of_path("/runtime.v1.RuntimeService/NotYetInvented"), Method::OTHER);
        assert_eq!(Method::of_path("/runtime.v1alpha2.RuntimeService/Version"), Method::OTHER);
    }

    #[test]
    fn image_calls_go_to_the_image_connection() {
        assert_eq!(Service::of_path("/runtime.v1.ImageService/PullImage"), Service::Image);
        assert_eq!(Service::of_path("/runtime.v1alpha2.ImageService/PullImage"), Service::Image);
        assert_eq!(Service::of_path("/runtime.v1.RuntimeService/Version"), Service::Runtime);
        assert_eq!(Service::of_path("/containerd.services.images.v1.Images/Get"), Service::Runtime);
        assert_eq!(Service::of_path("*"), Service::Runtime);
    }
}
