//! What can be configured of containers.

use super::Field;

/// How containers with foreign hashes are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HashShield {
    /// Whether they are.
    pub mode: ShieldMode,
    /// Who is taken for a kubelet that hashes name and image only.
    pub kubelets: Kubelets,
}

/// What the hash shield does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShieldMode {
    /// Shows containers with the hash that the kubelet expects.
    #[default]
    On,
    /// Only counts and logs which ones it would.
    DryRun,
    /// Nothing.
    Off,
}

/// How kubelets from 1.31 on are told from older ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kubelets {
    /// By what they say of themselves.
    #[default]
    Auto,
    /// Every caller is a new one.
    New,
    /// No caller is.
    Old,
}

/// The fields, in the order in which they are documented.
pub(super) const FIELDS: &[Field] = &[
    Field {
        key: "hashShield.mode",
        default: "on",
        form: "on, dry-run or off",
        help: "Whether a kubelet from 1.31 on is shown containers that an older kubelet made with the hash that it \
               expects, so that the upgrade restarts only what has changed. dry-run only counts and logs them.",
        set: |config, text| {
            config.hash_shield.mode = match text {
                // What older versions of YAML make of on and off.
                "on" | "true" => ShieldMode::On,
                "dry-run" => ShieldMode::DryRun,
                "off" | "false" => ShieldMode::Off,
                _ => return Err("must be on, dry-run or off".to_owned()),
            };
            Ok(())
        },
    },
    Field {
        key: "hashShield.kubelets",
        default: "auto",
        form: "auto, new or old",
        help: "Whether callers are kubelets from 1.31 on (new) or before (old). auto tells by their gRPC library.",
        set: |config, text| {
            config.hash_shield.kubelets = match text {
                "auto" => Kubelets::Auto,
                "new" => Kubelets::New,
                "old" => Kubelets::Old,
                _ => return Err("must be auto, new or old".to_owned()),
            };
            Ok(())
        },
    },
];
