//! Where it is written how the API server is reached.

use std::path::{Path, PathBuf};

use ::kube::client::ConfigExt;
use ::kube::config::{Config, Kubeconfig, KubeconfigError, LoadDataError};

use crate::config;

/// Where it is written how the API server is reached.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// In a kubeconfig.
    File(PathBuf),
    /// In the pod that crisp runs in.
    Pod,
}

/// It cannot work as it is written now. Shows nothing that is written there but names of keys and places: whatever is
/// in the wrong place may be a secret.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub(super) struct Mistake {
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
                let kubeconfig = Kubeconfig::read_from(path).map_err(|error| self.mistake(words(&error)))?;
                Config::try_from(kubeconfig).map_err(|error| self.mistake(words(&error)))?
            }
            Self::Pod => Config::incluster_env().map_err(|error| self.mistake(error))?,
        };
        if config.proxy_url.is_some() {
            return Err(self.mistake("proxy-url is not supported"));
        }
        // A token that was taken for a host must not be shown as one.
        let is_address = matches!(config.cluster_url.scheme_str(), Some("http" | "https"));
        if !is_address || config.cluster_url.host().is_none() {
            return Err(self.mistake("server is not an address such as https://HOST:6443"));
        }
        // Who needs a program to get its credentials is not asked for them yet: that may need the network.
        if config.auth_info.exec.is_none() && config.auth_info.auth_provider.is_none() {
            super::client::install_tls();
            config.rustls_client_config().map_err(|error| {
                let inner = std::error::Error::source(&error).and_then(|inner| inner.downcast_ref());
                self.mistake(inner.map_or_else(|| error.to_string(), words))
            })?;
        }
        Ok(config)
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

/// The address of the API server.
pub(super) fn server(config: &Config) -> String {
    config.cluster_url.to_string().trim_end_matches('/').to_owned()
}

/// What is wrong with a kubeconfig, without what is written there.
fn words(error: &KubeconfigError) -> String {
    let file = |key: &str, error: &LoadDataError| match error {
        LoadDataError::ReadFile(error, _) => format!("the file that {key} names cannot be read: {error}"),
        LoadDataError::DecodeBase64(_) => format!("{key}-data is not base64"),
        LoadDataError::NoBase64DataOrFile => format!("{key} is missing"),
    };
    match error {
        KubeconfigError::ReadConfig(error, _) => format!("cannot be read: {error}"),
        KubeconfigError::Parse(error) => {
            let place = error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            format!("is not the YAML of a kubeconfig{}", place.unwrap_or_default())
        }
        KubeconfigError::CurrentContextNotSet => "current-context is missing".to_owned(),
        KubeconfigError::LoadContext(_) => "current-context names a context that is not in it".to_owned(),
        KubeconfigError::LoadClusterOfContext(_) => {
            "the current context names a cluster that is not in it".to_owned()
        }
        KubeconfigError::MissingClusterUrl => "the cluster has no server".to_owned(),
        KubeconfigError::ParseClusterUrl(_) => {
            "server is not an address such as https://HOST:6443".to_owned()
        }
        KubeconfigError::ParseProxyUrl(_) => "proxy-url is not supported".to_owned(),
        KubeconfigError::LoadCertificateAuthority(error) => file("certificate-authority", error),
        KubeconfigError::LoadClientCertificate(error) => file("client-certificate", error),
        KubeconfigError::LoadClientKey(error) => file("client-key", error),
        KubeconfigError::ParseCertificates(_) => "certificate-authority is not PEM".to_owned(),
        _ => "is not a kubeconfig that can be used".to_owned(),
    }
}

/// The host name as the kubelet makes a node's name of it.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever stands where it does not belong may be a token, and errors are logged.
    #[test]
    fn an_error_never_shows_what_is_written_there() {
        const FINE: &str = r#"apiVersion: "v1"
kind: "Config"
current-context: "c"
clusters: [{name: "c", cluster: {server: "https://127.0.0.1:1", certificate-authority: "none", tls-server-name: "n"}}]
contexts: [{name: "c", context: {cluster: "c", user: "u", namespace: "d"}}]
users: [{name: "u", user: {client-certificate: "x", client-key: "y", username: "n", password: "p"}}]
"#;
        let files = tempfile::tempdir().unwrap();
        let source = Source::File(files.path().join("kubeconfig"));
        let check = |text: &str| {
            std::fs::write(files.path().join("kubeconfig"), text).unwrap();
            let error = source.read().map(drop).unwrap_err().to_string();
            assert!(!error.to_lowercase().contains("s3cret"), "{error}\nof {text}");
            assert!(error.starts_with("kubeconfig /"), "{error}");
        };
        // Files that are not there, named by what is none.
        let no_authority = FINE.replace("certificate-authority: \"none\", ", "");
        check(&no_authority.replace("\"x\"", "s3cret"));
        check(&no_authority.replace("client-certificate: \"x\"", "client-certificate-data: s3cret"));
        // Instead of each value, as text and with other forms; instead of each list and map; as one more key.
        let pieces: Vec<_> = FINE.split('"').collect();
        for (value, secret) in (1..pieces.len()).step_by(2).flat_map(|at| {
            [
                "\"s3cret.s3cret\"",
                "[s3cret]",
                "{s3cret: s3cret}",
                "s3cret: s3cret",
                "\"s3cret",
                "*s3cret",
                "!s3cret x",
            ]
            .map(|secret| (at, secret))
        }) {
            let text: String = pieces
                .iter()
                .enumerate()
                .map(|(at, piece)| match at {
                    at if at == value => secret.to_owned(),
                    at if at % 2 == 1 => format!("\"{piece}\""),
                    _ => (*piece).to_owned(),
                })
                .collect();
            check(&text);
        }
        for (from, to) in [
            ("cluster: {", "cluster: s3cret #"),
            ("context: {", "context: s3cret #"),
            ("user: {", "user: s3cret #"),
            ("users: [", "users: s3cret #"),
            ("clusters: [", "clusters: s3cret #"),
            ("user: {client-certificate", "user: {client-certificate-data: s3cret, client-certificate"),
            ("certificate-authority", "certificate-authority-data: s3cret, certificate-authority"),
            ("server:", "proxy-url: 's3cret s3cret', server:"),
            ("client-key", "client-key-data: s3cret, client-key"),
            ("kind", "s3cret\nkind"),
        ] {
            check(&FINE.replacen(from, to, 1));
        }
    }
}
