//! Messages of the CRI's own shape, with fields that nobody knows at every level of them.

use crate::support::random::{Random, field};

/// A message: numbers of fields, each with what it holds. `s` is text, `m` an entry of a map, `{…}` a message and a capital a
/// message of [`PARTS`]. What has no number of its own here is none of crisp's business, and like an unknown field.
type Shape = &'static str;

const PARTS: &[(char, Shape)] = &[
    ('S', "1s 2m 18s 19s 20s"),                            // ImageSpec
    ('I', "1s 2s 2s 3s 7S"),                               // Image
    ('P', "1{1s 2s 3s} 2s 4{1s} 6m 7m 7m 8{1s 2{1{1s}}}"), // PodSandboxConfig
    ('N', "1{1s} 2S 3s 4s 4s 5s 6{1s 2s} 6{1s 2s} 7{1s 2s 6{} 9S 10s} 8{1s 2s 3s} 9m 9m 10m 11s 15L 17{1s}"), // ContainerConfig
    ('L', "1{6s 8{1s} 9m} 2{1{1s 2s} 3{5{2{}}} 4{1s} 5{} 6s 13s 15{2s}}"), // LinuxContainerConfig
    ('C', "1s 2s 3{1s} 4S 5s 8m 8m 9m 10s"),                               // Container
    ('T', "1s 2{1s} 8S 9s 10s 11s 12m 12m 13m 14{1s 2s} 16{1{6s}} 17s 18{1{}}"), // ContainerStatus
    ('B', "1s 2{1s 2s 3s} 5{1s 2{1s}} 6{1{1{}}} 7m 8m 9s"),                // PodSandboxStatus
    ('A', "1{1s 2{1s} 3m 3m 4m} 2{2{}} 3{2{}} 4{2{1s}}"),                  // ContainerStats
    ('D', "1{1s 2{1s 2s 3s} 3m 4m} 2{1{2{}} 3{2{1s}} 5A 5A}"),             // PodSandboxStats
];

/// What is asked and answered, of methods that crisp looks at. It knows nothing of the others, so that one shape will do.
const METHODS: &[(&str, Shape, Shape)] = &[
    ("PullImage", "1S 2{1s 2s} 3P", "1s"),
    ("ImageStatus", "1S", "1I 2m"),
    ("ListImages", "1{1S}", "1I 1I"),
    ("StreamImages", "1{1S}", "1I"),
    ("RemoveImage", "1S", ""),
    ("RunPodSandbox", "1P 2s", "1s"),
    ("PodSandboxStatus", "1s", "1B 2m 3T 3T"),
    ("CreateContainer", "1s 2N 3P", "1s"),
    ("StopContainer", "1s", ""),
    ("ContainerStatus", "1s", "1T 2m"),
    ("ListContainers", "1{1s 2{} 3s 4m}", "1C 1C"),
    ("StreamContainers", "1{1s 2{} 3s 4m}", "1C"),
    ("GetContainerEvents", "", "1s 4B 5T 5T"),
    ("ContainerStats", "1s", "1A"),
    ("ListContainerStats", "1{1s 2s 3m}", "1A 1A"),
    ("StreamContainerStats", "1{1s 2s 3m}", "1A"),
    ("PodSandboxStats", "1s", "1D"),
    ("ListPodSandboxStats", "1{1s 2m}", "1D 1D"),
    ("StreamPodSandboxStats", "1{1s 2m}", "1D"),
];
const OTHER: Shape = "1s 2{1s 2{1m 2{1s 2{}}}} 3m";

/// A request and a reply of a method.
pub(crate) fn messages_of(path: &str, random: &mut Random) -> [Vec<u8>; 2] {
    let method = path.strip_prefix("/runtime.v1.").and_then(|method| method.split('/').nth(1));
    let found = METHODS.iter().find(|(name, ..)| Some(*name) == method);
    let (_, request, reply) = found.unwrap_or(&("", OTHER, OTHER));
    [request, reply].map(|shape| message(&mut shape.chars(), random))
}

/// A message up to the end of its shape, with unknown fields around all others.
fn message(shape: &mut std::str::Chars<'_>, random: &mut Random) -> Vec<u8> {
    let mut out = random.unknown_fields(3);
    let mut number = 0;
    while let Some(what) = shape.next() {
        let value = match what {
            '}' => break,
            ' ' => continue,
            digit @ '0'..='9' => {
                number = number * 10 + u64::from(digit) - u64::from('0');
                continue;
            }
            's' => format!("text-{}", random.below(1000)).into_bytes(),
            'm' => message(&mut "1s 2s".chars(), random),
            '{' => message(shape, random),
            part => {
                let (_, shape) = PARTS.iter().find(|(name, _)| *name == part).unwrap();
                message(&mut shape.chars(), random)
            }
        };
        out.extend(field(number, &value));
        out.extend(random.unknown_fields(1));
        number = 0;
    }
    out
}
