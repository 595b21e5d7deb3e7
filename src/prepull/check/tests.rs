use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::pull::Class;

const GIB: u64 = 1 << 30;
const LIMITS: DiskLimits = DiskLimits { factor: 3, floor_percent: 25, floor_bytes: GIB };

fn short(verdict: Verdict) -> String {
    match verdict {
        Verdict::Short { message } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn space_is_for_the_image_and_the_floor() {
    assert_eq!(disk(31 * GIB, 100 * GIB, Some(2 * GIB), &LIMITS), Verdict::Enough);
    assert_eq!(disk(31 * GIB - 1, 100 * GIB, None, &LIMITS), Verdict::Enough);
    assert_eq!(disk(25 * GIB, 100 * GIB, None, &LIMITS), Verdict::Enough);
    assert_eq!(
        short(disk(30 * GIB, 100 * GIB, Some(2 * GIB), &LIMITS)),
        "30.0 GiB of 100.0 GiB are free where images are kept, but the image takes 6.0 GiB (2.0 GiB to download, times \
         3) and 25.0 GiB must stay free; remove 1.0 GiB of images or other files there, or lower \
         prepull.diskFloorPercent or prepull.diskFloorBytes"
    );
    let message = short(disk(24 * GIB, 100 * GIB, None, &LIMITS));
    assert!(message.contains("but 25.0 GiB must stay free; remove 1.0 GiB"), "{message}");
    // The bytes are the floor of a small filesystem.
    assert!(short(disk(GIB - 1, 2 * GIB, None, &LIMITS)).contains("but 1.0 GiB must stay free"));
    assert!(matches!(disk(0, 0, None, &LIMITS), Verdict::Unknown { .. }));
    short(disk(u64::MAX - 1, u64::MAX, Some(u64::MAX), &LIMITS));
}

#[test]
fn space_is_read_of_the_nearest_directory_that_exists() {
    let dir = tempfile::tempdir().unwrap();
    let there = measure::space(dir.path().to_str().unwrap()).unwrap();
    assert!(there.total >= there.free && there.total > 0, "{there:?}");
    let missing = measure::space(dir.path().join("a/b").to_str().unwrap()).unwrap();
    assert_eq!((missing.path.as_path(), missing.total), (dir.path(), there.total));
    // Also when something on the way is a file.
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert!(measure::space(dir.path().join("file/b").to_str().unwrap()).is_ok());
    assert!(measure::space("").unwrap_err().contains("does not tell where"));
    assert!(measure::space("var/lib").unwrap_err().contains("is no path"));
    assert!(measure::space("/\0").is_err());
}

#[test]
fn processors_are_as_busy_as_between_two_samples() {
    let sample = |text: &str| CpuSample::parse(text);
    let before = sample("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n").unwrap();
    assert_eq!(before, CpuSample { total: 1000, idle: 800 });
    let after = sample("cpu  150 0 130 710 110 0 0 0 90 0\n").unwrap();
    assert_eq!(after.busy_percent(&before), Some(80));
    assert_eq!(cpu(&before, &after, 80), Verdict::Enough);
    assert!(short(cpu(&before, &after, 79)).starts_with("the processors are 80 % busy"));
    assert!(matches!(cpu(&before, &before, 80), Verdict::Unknown { .. }));
    // The time of waiting for disks went back.
    let odd = CpuSample { total: 1010, idle: 790 };
    assert_eq!(odd.busy_percent(&before), Some(100));
    for text in ["", "cpu 1 2 3", "cpu0 1 2 3 4", "cpu a b c d", "intr 1"] {
        assert_eq!(sample(text), None, "{text}");
    }
    assert_eq!(sample("cpu 1 2 3 4"), Some(CpuSample { total: 10, idle: 4 }));
    assert!(measure::cpu_sample().is_ok());
}

#[test]
fn memory_is_what_is_available() {
    let text = "MemTotal:       1000 kB\nMemFree:  5 kB\nMemAvailable:    200 kB\n";
    let found = Memory::parse(text).unwrap();
    assert_eq!(found, Memory { available: 200 << 10, total: 1000 << 10 });
    assert_eq!(memory(&found, 20), Verdict::Enough);
    let message = short(memory(&found, 21));
    assert!(message.starts_with("200.0 KiB of 1000.0 KiB memory are available"), "{message}");
    for text in ["", "MemTotal: 1 kB", "MemTotal: x kB\nMemAvailable: 1 kB", "MemAvailable: 1\nMemTotal: 2"] {
        assert_eq!(Memory::parse(text), None, "{text}");
    }
    assert!(matches!(memory(&Memory { available: 0, total: 0 }, 20), Verdict::Unknown { .. }));
    assert!(measure::memory_now().is_ok());
}

#[test]
fn checks_have_the_proposals_names() {
    for check in Check::ALL {
        assert_eq!(serde_json::to_value(check).unwrap(), json!(check.name()));
        assert_eq!(serde_json::from_value::<Check>(json!(check.name())).unwrap(), check);
    }
    assert_eq!(serde_json::from_value::<Check>(json!("memory")).unwrap(), Check::Memory);
    assert!(serde_json::from_value::<Check>(json!("Disk")).is_err());
}

#[test]
fn bytes_are_shown_in_the_unit_that_fits() {
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (GIB - 1, "1.0 GiB"),
        (GIB, "1.0 GiB"),
        (5 * GIB + GIB / 4, "5.3 GiB"),
        (u64::MAX, "16.0 EiB"),
    ] {
        assert_eq!(Bytes(bytes).to_string(), text, "{bytes}");
    }
}

fn hold(id: u32, class: Class, priority: i64, since: u64, bytes: u64) -> Hold<u32> {
    Hold { id, class, priority, since, bytes }
}

#[test]
fn the_least_important_gives_way_first_and_the_oldest_of_those() {
    let holds = [
        hold(1, Class::Urgent, 0, 1, 10),
        hold(2, Class::Background, 5, 1, 10),
        hold(3, Class::Background, 0, 9, 10),
        hold(4, Class::Background, 0, 2, 10),
        hold(5, Class::Background, -1, 9, 0),
    ];
    assert_eq!(give_way(20, 100, 20, 0, &holds), [0; 0]);
    assert_eq!(give_way(11, 100, 20, 0, &holds), [4]);
    assert_eq!(give_way(9, 100, 20, 0, &holds), [4, 3]);
    assert_eq!(give_way(0, 100, 100, 0, &holds), [4, 3, 2, 1]);
    // What was let go before counts.
    assert_eq!(give_way(9, 100, 20, 11, &holds), [0; 0]);
    assert_eq!(give_way(9, 100, 20, 10, &holds), [4]);
    assert_eq!(over_bound(40, &holds), [0; 0]);
    assert_eq!(over_bound(39, &holds), [4]);
    assert_eq!(over_bound(0, &holds), [4, 3, 2, 1]);
}

prop_compose! {
    fn some_holds()(
        holds in prop::collection::vec((0usize..4, -2i64..3, 0u64..4, 0u64..50), 0..12),
    ) -> Vec<Hold<usize>> {
        holds
            .into_iter()
            .enumerate()
            .map(|(id, (class, priority, since, bytes))| Hold { id, class: Class::ALL[class], priority, since, bytes })
            .collect()
    }
}

/// No one stays that is less important than one that goes.
fn check_order(holds: &[Hold<usize>], gone: &[usize]) -> Result<(), TestCaseError> {
    let rank = |id: &usize| (holds[*id].class, holds[*id].priority, holds[*id].since);
    prop_assert!(gone.is_sorted_by_key(&rank));
    let stays = (0..holds.len()).filter(|id| !gone.contains(id) && holds[*id].bytes > 0);
    if let (Some(first), Some(last)) = (stays.min_by_key(rank), gone.last()) {
        prop_assert!(rank(last) <= rank(&first));
    }
    Ok(())
}

proptest! {
    #[test]
    fn enough_goes_and_nothing_in_vain(
        holds in some_holds(), free in 0u64..200, total in 1u64..200, floor in 0u8..=100, given in 0u64..100,
    ) {
        let gone = give_way(free, total, floor, given, &holds);
        check_order(&holds, &gone)?;
        let bytes = |ids: &[usize]| ids.iter().map(|id| holds[*id].bytes).sum::<u64>();
        let lack = (total * u64::from(floor)).div_ceil(100).saturating_sub(free + given);
        let all: u64 = holds.iter().map(|hold| hold.bytes).sum();
        prop_assert!(bytes(&gone) >= lack.min(all));
        if let Some((_, all_but_last)) = gone.split_last() {
            prop_assert!(bytes(all_but_last) < lack);
        }
        // Once that is on its way, nothing more goes.
        let rest: Vec<_> = holds.iter().filter(|hold| !gone.contains(&hold.id)).cloned().collect();
        let again = give_way(free, total, floor, given + bytes(&gone), &rest);
        prop_assert!(again.is_empty());
    }

    #[test]
    fn the_rest_is_within_the_bound(holds in some_holds(), max in 0u64..400) {
        let gone = over_bound(max, &holds);
        check_order(&holds, &gone)?;
        let rest = |gone: &[usize]| {
            holds.iter().filter(|hold| !gone.contains(&hold.id)).map(|hold| hold.bytes).sum::<u64>()
        };
        prop_assert!(rest(&gone) <= max);
        if let Some((_, all_but_last)) = gone.split_last() {
            prop_assert!(rest(all_but_last) > max);
        }
    }

    #[test]
    fn no_file_is_too_odd(text in "(cpu |MemTotal:|MemAvailable:|[0-9]{1,25}|kB| |\n|\\PC){0,30}") {
        let _ = (CpuSample::parse(&text), Memory::parse(&text));
    }

    #[test]
    fn a_verdict_says_enough_exactly_when_there_is(
        free in any::<u64>(), total in 1u64.., missing in prop::option::of(any::<u64>()), percent in 0u8..=100,
    ) {
        let limits = DiskLimits { factor: 3, floor_percent: percent, floor_bytes: GIB };
        let floor = (u128::from(total) * u128::from(percent)).div_ceil(100).max(u128::from(GIB));
        let need = floor + u128::from(missing.unwrap_or(0)) * 3;
        let enough = u128::from(free) >= need;
        // At the very end of what a number holds, the need is cut off.
        prop_assume!(need <= u128::from(u64::MAX));
        prop_assert_eq!(disk(free, total, missing, &limits) == Verdict::Enough, enough);
    }
}
