//! critest, directly and through crisp side by side: what passes directly passes through crisp.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::lab::crisp::Crisp;
use crate::lab::critest::{self, Outcome, Report, Specs};
use crate::lab::node::Kind;
use crate::lab::{client, parts};
use crate::report;

#[test]
fn critest_on_containerd_2_4() {
    compare("containerd 2.4", Kind::Containerd("containerd-2.4.2"));
}

#[test]
#[ignore = "part of make e2e-all"]
fn critest_on_containerd_1_7() {
    compare("containerd 1.7", Kind::Containerd("containerd-1.7.30"));
}

#[test]
#[ignore = "part of make e2e-all"]
fn critest_on_containerd_1_6() {
    compare("containerd 1.6", Kind::MachineContainerd);
}

#[test]
#[ignore = "part of make e2e-all"]
fn critest_on_crio() {
    compare("CRI-O 1.36", Kind::Crio);
}

/// Specs that use ports of the machine itself, always the same ones: no two runs may be in them at the same time.
const MACHINE_PORTS: &str = "HostNetwork|host network|port mapping|portforward";

/// A spec that fails for want of something on a broken node would fail both ways: fewer passes than this directly
/// mean that the comparison says nothing.
const FEWEST_PASSES: usize = 70;

fn compare(name: &str, kind: Kind) {
    if let Some(reason) = kind.missing(&[]) {
        return parts::skip(&format!("critest: {name}"), &reason);
    }
    let began = Instant::now();
    // Two nodes at the same time: critest mostly waits.
    let (plain, behind) = (kind.start(), kind.start());
    let crisp = Crisp::start(&behind.endpoint());
    let version = client::version(plain.socket()).expect("the runtime's version");
    let version = format!("{} {}", version.runtime_name, version.runtime_version);
    let call_limit = Duration::from_secs(if matches!(kind, Kind::Crio) { 20 } else { 60 });
    let directly = |specs: &Specs| critest::run(&plain.endpoint(), specs, call_limit);
    let through_crisp = |specs: &Specs| critest::run(&crisp.endpoint(), specs, call_limit);

    let most = Specs::AllBut(MACHINE_PORTS.to_owned());
    let (mut direct, mut through) = thread::scope(|scope| {
        let direct = scope.spawn(|| directly(&most));
        let through = scope.spawn(|| through_crisp(&most));
        (direct.join().expect("the direct run"), through.join().expect("the run through crisp"))
    });
    {
        let _alone = lock_machine_ports();
        let rest = Specs::Only(MACHINE_PORTS.to_owned());
        direct.merge(directly(&rest));
        through.merge(through_crisp(&rest));
    }
    let (lost, flaky) = judge(&direct, &mut through, directly, through_crisp);

    report::add_critest(&version, &direct, &through, &lost, &flaky, began.elapsed());
    assert!(
        direct.count(Outcome::Passed) >= FEWEST_PASSES,
        "critest hardly passes directly: the node is broken"
    );
    assert!(
        lost.is_empty(),
        "{version}: passes directly, but not through crisp: {lost:#?}\n{}",
        crisp.log_tail()
    );
    // critest is not the kubelet, whose hashes are the ones to be compared.
    assert_eq!(crisp.metric("crisp_hash_shield_refuted"), 0, "{}", crisp.log_tail());
}

/// Runs each spec that differs alone, both ways, before it counts as lost: some are flaky on a loaded machine.
/// Returns the lost ones and the ones that differed only at first.
fn judge(
    direct: &Report,
    through: &mut Report,
    directly: impl Fn(&Specs) -> Report,
    through_crisp: impl Fn(&Specs) -> Report,
) -> (Vec<String>, Vec<String>) {
    let differing: Vec<String> = direct
        .specs
        .iter()
        .filter(|(name, outcome)| **outcome == Outcome::Passed && !through.passed(name))
        .map(|(name, _)| name.clone())
        .collect();
    let (mut lost, mut flaky) = (Vec::new(), Vec::new());
    let _alone = lock_machine_ports();
    for name in differing {
        let alone = Specs::one(&name);
        let again = through_crisp(&alone);
        // A spec that now fails directly too does not depend on crisp.
        if again.passed(&name) {
            through.merge(again);
            flaky.push(name);
        } else if directly(&alone).passed(&name) {
            lost.push(name);
        } else {
            flaky.push(name);
        }
    }
    (lost, flaky)
}

/// Held by whoever uses the machine's own ports, in this program or in another.
fn lock_machine_ports() -> File {
    let path = std::env::temp_dir().join(".crisp-machine-ports");
    let file = File::options().create(true).append(true).open(path).expect("open the lock");
    flock(&file, FlockOperation::LockExclusive).expect("lock the machine's ports");
    file
}
