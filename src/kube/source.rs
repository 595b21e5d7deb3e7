//! Where it is written how the API server is reached.

use std::path::{Path, PathBuf};

use ::kube::client::ConfigExt;
use ::kube::config::{Config, Kubeconfig};

use crate::config;

/// Where it is written how the API server is reached.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// In a kubeconfig.
    File(PathBuf),
    /// In the pod that crisp runs in.
    Pod,
}

/// It can never work as it is written.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}; correct it, or leave out kubeconfig to run without the Kubernetes API")]
pub struct Mistake {
    place: String,
    reason: String,
}

/// The token of a pod's service account.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

// === impl Source ===

impl Source {
    /// The one to be used, if there is one.
    pub(super) fn find(settings: &config::Kube) -> Option<Self> {
        if let Some(file) = &settings.kubeconfig {
            return Some(Self::File(file.clone()));
        }
        let pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(TOKEN).exists();
        pod.then_some(Self::Pod)
    }

    /// Reads it. Files that it names are read too, programs that it names are not run.
    pub(super) fn read(&self) -> Result<Config, Mistake> {
        let config = match self {
            Self::File(path) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(|error| self.mistake(error))?;
                Config::try_from(kubeconfig).map_err(|error| self.mistake(error))?
            }
            Self::Pod => Config::incluster_env().map_err(|error| self.mistake(error))?,
        };
        if config.proxy_url.is_some() {
            return Err(self.mistake("proxy-url is not supported"));
        }
        Ok(config)
    }

    /// Whether it can ever work. Gives the address of the API server.
    pub(super) fn check(&self) -> Result<String, Mistake> {
        let config = self.read()?;
        if config.cluster_url.host().is_none() {
            return Err(self.mistake("server is not an address such as https://HOST:6443"));
        }
        // Who needs a program to get its credentials is not asked for them yet: that may need the network.
        if config.auth_info.exec.is_none() && config.auth_info.auth_provider.is_none() {
            super::client::install_tls();
            config.rustls_client_config().map_err(|error| self.mistake(error))?;
        }
        Ok(config.cluster_url.to_string().trim_end_matches('/').to_owned())
    }

    /// How it is called in errors.
    pub(super) fn place(&self) -> String {
        match self {
            Self::File(path) => format!("kubeconfig {}", path.display()),
            Self::Pod => "the pod's service account".to_owned(),
        }
    }

    fn mistake(&self, reason: impl ToString) -> Mistake {
        Mistake { place: self.place(), reason: reason.to_string() }
    }
}

// === impl Mistake ===

impl Mistake {
    /// What is wrong, and where.
    pub(super) fn words(&self) -> String {
        format!("{}: {}", self.place, self.reason)
    }
}

/// The host name as the kubelet makes a node's name of it.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase()
}
