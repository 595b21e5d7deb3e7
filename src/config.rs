//! Configuration: one table of fields, from which the YAML keys, the flags, their help and the documentation come.
//!
//! A value is read from the defaults, then the file, then the flags; the last one wins. All mistakes are reported
//! at once, each with the path of its key. A flag is spelled like its key: `drain.max` is `--drain-max`,
//! `runtimeEndpoint` is `--runtime-endpoint`.

mod containers;
mod kube;
mod prepull;
mod record;
mod value;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_norway::{Mapping, Value};

use self::value::{MAX_SOCKET, absolute, boolean, log_filter, unix};
use crate::image::AciNames;

pub use self::containers::{HashShield, Kubelets, ShieldMode};
pub use self::kube::{Kube, Links};
pub use self::prepull::Prepull;
pub use self::record::Record;
pub use self::value::duration;

/// Everything that can be configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The socket that the kubelet connects to.
    pub listen: PathBuf,
    /// The real runtime. `None`: look at the well-known places.
    pub runtime_endpoint: Option<Runtime>,
    /// The real image service. `None`: the runtime's.
    pub image_endpoint: Option<PathBuf>,
    /// Where crisp keeps what must survive a restart.
    pub state_dir: PathBuf,
    /// The socket of the admin API.
    pub admin_listen: PathBuf,
    /// Where metrics and health are served. `None`: nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines are written.
    pub log_level: String,
    /// How long calls may go on after SIGTERM.
    pub drain_max: Duration,
    /// Which names are ACI images by themselves.
    pub image_aci_names: AciNames,
    /// How pulls are coordinated.
    pub pull: Pulls,
    /// What is pulled ahead of time, and kept.
    pub prepull: Prepull,
    /// How containers with foreign hashes are shown.
    pub hash_shield: HashShield,
    /// How the Kubernetes API server is reached.
    pub kube: Kube,
    /// What pods may ask of Services.
    pub links: Links,
    /// What is recorded of containers.
    pub record: Record,
}

/// Where the runtime is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runtime {
    /// Behind a unix socket.
    Unix(PathBuf),
    /// Built into crisp.
    Embedded,
}

/// How pulls are coordinated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pulls {
    /// Slots for all pulls that are not a kubelet's.
    pub max_background: usize,
    /// How long a pull goes on that nobody waits for any more.
    pub grace: Duration,
    /// How long what an unfinished pull has downloaded is kept.
    pub keep_partial: Duration,
    /// Whether pulls that name no pod are background pulls.
    pub bare_is_background: bool,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines, one JSON object a line.
    Json,
}

/// One row of the table.
#[derive(Debug)]
pub struct Field {
    /// Path of the key in the file.
    pub key: &'static str,
    /// Default, as it would be written; empty means none.
    pub default: &'static str,
    /// Unit or form of the value.
    pub form: &'static str,
    /// What it does.
    pub help: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

/// All that is wrong with a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<String>);

/// The well-known sockets of containerd and CRI-O.
pub const WELL_KNOWN: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];

/// Where the embedded runtime is in the state directory, and its socket there.
pub const EMBEDDED: &str = "embedded";
pub(crate) const EMBEDDED_SOCKET: &str = "embedded.sock";

/// Every field, in the order in which it is documented.
pub fn fields() -> impl Iterator<Item = &'static Field> {
    let containers = record::FIELDS.iter().chain(containers::FIELDS);
    FIELDS.iter().chain(prepull::FIELDS).chain(kube::FIELDS).chain(containers)
}

const FIELDS: &[Field] = &[
    Field {
        key: "listen",
        default: "unix:///run/crisp/crisp.sock",
        form: "unix://PATH",
        help: "Socket that the kubelet connects to (mode 0600). Not used under systemd socket activation.",
        set: |config, text| unix(text).map(|path| config.listen = path),
    },
    Field {
        key: "runtimeEndpoint",
        default: "",
        form: "unix://PATH or embedded",
        help: "The real container runtime. Without it the well-known sockets of containerd and CRI-O are tried. \
               `embedded` is the runtime built into crisp: real images, containers as records only.",
        set: |config, text| {
            config.runtime_endpoint = Some(match text {
                "embedded" => Runtime::Embedded,
                _ => Runtime::Unix(unix(text).map_err(|error| format!("{error}, or `embedded`"))?),
            });
            Ok(())
        },
    },
    Field {
        key: "imageEndpoint",
        default: "",
        form: "unix://PATH",
        help: "The real image service, if it is not the runtime's.",
        set: |config, text| unix(text).map(|path| config.image_endpoint = Some(path)),
    },
    Field {
        key: "stateDir",
        default: "/var/lib/crisp",
        form: "DIR",
        help: "Directory for what must survive a restart. crisp makes it with mode 0700.",
        set: |config, text| absolute(text).map(|path| config.state_dir = path),
    },
    Field {
        key: "adminListen",
        default: "unix:///run/crisp/admin.sock",
        form: "unix://PATH",
        help: "Socket of the JSON admin API that `crisp status` uses (mode 0600).",
        set: |config, text| unix(text).map(|path| config.admin_listen = path),
    },
    Field {
        key: "metricsListen",
        default: "",
        form: "ADDR:PORT",
        help: "Address of /metrics, /livez and /readyz (read-only). Off unless set.",
        set: |config, text| {
            let address =
                text.parse().map_err(|_| "expected ADDR:PORT, for example 127.0.0.1:9464".to_owned())?;
            config.metrics_listen = Some(address);
            Ok(())
        },
    },
    Field {
        key: "log.format",
        default: "text",
        form: "text or json",
        help: "Form of log lines on standard error.",
        set: |config, text| {
            config.log_format = match text {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                _ => return Err("expected text or json".into()),
            };
            Ok(())
        },
    },
    Field {
        key: "log.level",
        default: "info",
        form: "error, warn, info, debug or trace",
        help: "Least severe log lines that are written; `crisp=debug,info` sets it by module.",
        set: |config, text| {
            log_filter(text)?;
            config.log_level = text.to_owned();
            Ok(())
        },
    },
    Field {
        key: "drain.max",
        default: "10s",
        form: "duration (ms, s, m, h)",
        help: "How long calls under way may go on after SIGTERM; then they end with UNAVAILABLE.",
        set: |config, text| duration(text).map(|time| config.drain_max = time),
    },
    Field {
        key: "image.aciPrefixes",
        default: "",
        form: "HOST[/PATH],...",
        help: "Names below these are ACI images without an annotation, besides those of the reserved host \
               aci.crisp.invalid.",
        set: |config, text| AciNames::parse(text).map(|names| config.image_aci_names = names),
    },
    Field {
        key: "pull.maxBackground",
        default: "2",
        form: "number, at least 1",
        help: "How many pulls run at once that are not a kubelet's. Kubelets' pulls start at once.",
        set: |config, text| {
            let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
            config.pull.max_background = number.ok_or("expected a number from 1 to 1000")?;
            Ok(())
        },
    },
    Field {
        key: "pull.grace",
        default: "10s",
        form: "duration (ms, s, m, h)",
        help: "How long a pull goes on when nobody waits for it any more, so that a retry finds it.",
        set: |config, text| duration(text).map(|time| config.pull.grace = time),
    },
    Field {
        key: "pull.keepPartial",
        default: "10m",
        form: "duration (ms, s, m, h)",
        help: "How long containerd keeps what a pull has downloaded that failed, was given up or was cut off by a \
               restart of crisp. The next pull of that image resumes there.",
        set: |config, text| duration(text).map(|time| config.pull.keep_partial = time),
    },
    Field {
        key: "pull.bareIsBackground",
        default: "false",
        form: "true or false",
        help: "Whether pulls that name no pod (crictl, kubeadm, edgecore) are background pulls. Otherwise they come \
               right after kubelets' pulls.",
        set: |config, text| boolean(text).map(|flag| config.pull.bare_is_background = flag),
    },
];

// === impl Config ===

impl Config {
    /// Reads defaults, then the file's text, then flags by key.
    pub fn load<'a>(
        file: Option<&str>,
        flags: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Mistakes> {
        let mut config = Self::blank();
        let mut mistakes = Vec::new();
        for field in fields().filter(|field| !field.default.is_empty()) {
            if let Err(error) = (field.set)(&mut config, field.default) {
                mistakes.push(format!("{}: default {:?}: {error}", field.key, field.default));
            }
        }
        if let Some(text) = file {
            // Some editors begin a file with a mark that YAML takes for a document of its own.
            match serde_norway::from_str(text.trim_start_matches('\u{feff}')) {
                Ok(Value::Mapping(map)) => config.read(&map, "", &mut mistakes),
                Ok(Value::Null) => {}
                Ok(_) => mistakes.push("file: expected keys and values, one `key: value` a line".into()),
                Err(error) => mistakes.push(format!("not valid YAML: {error}")),
            }
        }
        for (key, text) in flags {
            if let Err(error) = config.set(key, text) {
                mistakes.push(format!("{}: {error}", flag_of(key)));
            }
        }
        config.check(&mut mistakes);
        if mistakes.iter().any(|mistake| mistake.ends_with(UNKNOWN)) {
            let known: Vec<_> = fields().map(|field| field.key).collect();
            mistakes.push(format!("known keys are {}", known.join(", ")));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(Mistakes(mistakes)) }
    }

    fn blank() -> Self {
        Self {
            listen: PathBuf::new(),
            runtime_endpoint: None,
            image_endpoint: None,
            state_dir: PathBuf::new(),
            admin_listen: PathBuf::new(),
            metrics_listen: None,
            log_format: LogFormat::Text,
            log_level: String::new(),
            drain_max: Duration::ZERO,
            image_aci_names: AciNames::default(),
            pull: Pulls::default(),
            prepull: Prepull::default(),
            hash_shield: HashShield::default(),
            kube: Kube::default(),
            links: Links::default(),
            record: Record::default(),
        }
    }

    /// Takes over what the file says below the path of a section; the whole file has an empty one.
    fn read(&mut self, map: &Mapping, section: &str, mistakes: &mut Vec<String>) {
        for (key, value) in map {
            let below =
                |key: &str| if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
            let Some(key) = key.as_str() else {
                mistakes.push(format!("{}: {UNKNOWN}", below(&scalar(key).unwrap_or_else(|| "?".into()))));
                continue;
            };
            let path = below(if key.is_empty() { "''" } else { key });
            // A dot would be another spelling of a key in a section, and both could be there.
            if let Some((first, rest)) = key.split_once('.') {
                mistakes.push(format!("{path}: write `{first}:` and, indented below it, `{rest}:`"));
                continue;
            }
            let text = match (kind(&path), value) {
                (Key::Unknown, _) => {
                    mistakes.push(format!("{path}: {UNKNOWN}"));
                    continue;
                }
                (Key::Section, Value::Mapping(map)) => {
                    self.read(map, &path, mistakes);
                    continue;
                }
                // What has no value sets nothing.
                (_, Value::Null) => continue,
                (Key::Field(field), value) => {
                    let Some(text) = field.text(value) else {
                        mistakes.push(format!("{path}: expected {}", field.form));
                        continue;
                    };
                    text
                }
                (Key::Section, _) => {
                    mistakes.push(format!("{path}: expected keys below it, not a value"));
                    continue;
                }
            };
            if let Err(error) = self.set(&path, &text) {
                mistakes.push(format!("{path}: {error}"));
            }
        }
    }

    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let field = fields().find(|field| field.key == key).ok_or(UNKNOWN)?;
        (field.set)(self, text)
    }

    /// What no single field can see.
    fn check(&self, mistakes: &mut Vec<String>) {
        let runtime = match &self.runtime_endpoint {
            Some(Runtime::Unix(path)) => Some(path),
            Some(Runtime::Embedded) | None => None,
        };
        if Some(&self.listen) == runtime || Some(&self.listen) == self.image_endpoint.as_ref() {
            mistakes.push("listen: is the runtime's own socket, so crisp would call itself".into());
        }
        let embedded = self.state_dir.join(EMBEDDED).join(EMBEDDED_SOCKET);
        if self.runtime_endpoint == Some(Runtime::Embedded) && embedded.as_os_str().len() > MAX_SOCKET {
            mistakes.push(format!(
                "stateDir: is too long for the embedded runtime: its socket there would have a path of more than {MAX_SOCKET} \
                 bytes"
            ));
        }
        if self.listen == self.admin_listen {
            mistakes.push("adminListen: must differ from listen".into());
        }
        self.prepull.check(mistakes);
    }
}

// === impl Field ===

impl Field {
    /// A value of the file as a flag would have it. What is a list may be one in YAML's own way.
    fn text(&self, value: &Value) -> Option<String> {
        let parts: Option<Vec<String>> = match value {
            Value::Sequence(list) if self.form.ends_with(",...") => list.iter().map(scalar).collect(),
            Value::Mapping(map) if self.form.contains('=') => {
                map.iter().map(|(key, value)| Some(format!("{}={}", scalar(key)?, scalar(value)?))).collect()
            }
            _ => return scalar(value),
        };
        Some(parts?.join(","))
    }

    /// The flag that sets this field, without dashes.
    pub fn flag(&self) -> String {
        flag_of(self.key).trim_start_matches('-').to_owned()
    }
}

// === impl Mistakes ===

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

/// A value that is no list and has no keys, as it is written.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => None,
    }
}

/// What a path in the file may be.
enum Key {
    Field(&'static Field),
    Section,
    Unknown,
}

const UNKNOWN: &str = "unknown key";

fn kind(path: &str) -> Key {
    let below = |key: &str| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
    if let Some(field) = fields().find(|field| field.key == path) {
        Key::Field(field)
    } else if fields().any(|field| below(field.key)) {
        Key::Section
    } else {
        Key::Unknown
    }
}

/// `drain.max` becomes `--drain-max`, `stateDir` becomes `--state-dir`.
fn flag_of(key: &str) -> String {
    let mut flag = String::from("--");
    for letter in key.chars() {
        match letter {
            '.' => flag.push('-'),
            _ if letter.is_ascii_uppercase() => flag.extend(['-', letter.to_ascii_lowercase()]),
            _ => flag.push(letter),
        }
    }
    flag
}

#[cfg(test)]
mod tests;
