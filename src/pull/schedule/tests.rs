//! The rules, one by one, and what holds for any of them.

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { max_background: 2, resumes: true, one_per_line: false };
const LATE: Duration = Duration::from_secs(1);

fn view(id: u64, class: Class, stage: Stage) -> View {
    View { id, class, line: id as usize, preempted: 0, stage }
}

fn queued(id: u64, class: Class) -> View {
    view(id, class, Stage::Queued(Duration::ZERO))
}

fn running(id: u64, class: Class, time: Duration, phase: Phase) -> View {
    view(id, class, Stage::Running(time, phase))
}

#[test]
fn kubelets_start_at_once_and_others_by_class_then_age() {
    let flights = [
        queued(1, Class::Background),
        queued(2, Class::Background),
        queued(3, Class::Urgent),
        queued(4, Class::Normal),
    ];
    assert_eq!(schedule(&flights, LIMITS), [Action::Start(3), Action::Start(4)]);
    let kubelets: Vec<View> = (1..=5).map(|id| queued(id, Class::Kubelet)).collect();
    assert_eq!(schedule(&kubelets, LIMITS).len(), 5);
}

#[test]
fn nothing_starts_beside_a_kubelets_pull_unless_that_is_stuck() {
    let beside =
        |time, phase| schedule(&[running(1, Class::Kubelet, time, phase), queued(2, Class::Urgent)], LIMITS);
    assert_eq!(beside(Duration::ZERO, Phase::Unknown), []);
    assert_eq!(beside(LATE, Phase::Downloading), []);
    assert_eq!(beside(LATE, Phase::Resolving), []);
    assert_eq!(beside(STUCK, Phase::Resolving), [Action::Start(2)]);
    assert_eq!(beside(LONG, Phase::Unknown), [Action::Start(2)]);
    assert_eq!(beside(LONG, Phase::Downloading), []);
}

#[test]
fn others_give_way_only_after_patience_only_while_downloading_and_not_for_ever() {
    let kubelet = |time| running(1, Class::Kubelet, time, Phase::Downloading);
    let other = |phase| running(2, Class::Background, LATE, phase);
    assert_eq!(schedule(&[kubelet(PATIENCE / 2), other(Phase::Downloading)], LIMITS), []);
    for phase in [Phase::Unknown, Phase::Resolving, Phase::Downloading] {
        assert_eq!(schedule(&[kubelet(PATIENCE), other(phase)], LIMITS), [Action::Preempt(2)]);
    }
    assert_eq!(schedule(&[kubelet(LATE), other(Phase::Unpacking)], LIMITS), []);
    let tired = View { preempted: MAX_PREEMPTIONS, ..other(Phase::Downloading) };
    assert_eq!(schedule(&[kubelet(LATE), tired], LIMITS), []);
    let cannot = Limits { resumes: false, ..LIMITS };
    assert_eq!(schedule(&[kubelet(LATE), other(Phase::Downloading)], cannot), []);
}

#[test]
fn one_that_gave_way_often_enough_runs_on_but_only_one_at_a_time() {
    let kubelet = running(1, Class::Kubelet, LATE, Phase::Downloading);
    let tired =
        |id, time| View { preempted: MAX_PREEMPTIONS, ..view(id, Class::Background, Stage::Queued(time)) };
    let flights = |time| [kubelet.clone(), tired(2, time), tired(3, time), queued(4, Class::Urgent)];
    assert_eq!(schedule(&flights(LATE), LIMITS), []);
    assert_eq!(schedule(&flights(STUCK), LIMITS), [Action::Start(2)]);
}

#[test]
fn one_that_waits_for_a_slot_takes_that_of_the_least_urgent() {
    let waiting = |class| view(3, class, Stage::Queued(PATIENCE));
    let normal = running(1, Class::Normal, LATE, Phase::Downloading);
    let background = running(2, Class::Background, LATE, Phase::Downloading);
    let flights = |waiting| [normal.clone(), background.clone(), waiting];
    assert_eq!(schedule(&flights(waiting(Class::Urgent)), LIMITS), [Action::Preempt(2)]);
    assert_eq!(schedule(&flights(waiting(Class::Background)), LIMITS), []);
    assert_eq!(schedule(&flights(queued(3, Class::Urgent)), LIMITS), []);
    // One slot is already on its way.
    let stopping = View { stage: Stage::Stopping, ..background.clone() };
    assert_eq!(schedule(&[normal.clone(), stopping, waiting(Class::Urgent)], LIMITS), []);
}

#[test]
fn other_credentials_wait_for_their_line_where_the_runtime_would_download_twice() {
    let crio = Limits { resumes: false, one_per_line: true, ..LIMITS };
    let first = running(1, Class::Background, LATE, Phase::Unknown);
    let second = View { line: 1, ..queued(2, Class::Kubelet) };
    let flights = [first, second, queued(3, Class::Background)];
    // The second does not start; the first has become a kubelet's, so the third has to wait too.
    assert_eq!(schedule(&flights, crio), []);
    assert_eq!(schedule(&flights, LIMITS)[0], Action::Start(2));
}

fn any_view() -> impl Strategy<Value = View> {
    let class = prop::sample::select(Class::ALL.to_vec());
    let time = prop::sample::select(vec![Duration::ZERO, PATIENCE / 2, PATIENCE, STUCK, LONG]);
    let phase =
        prop::sample::select(vec![Phase::Unknown, Phase::Resolving, Phase::Downloading, Phase::Unpacking]);
    let stage = prop_oneof![
        time.clone().prop_map(Stage::Queued),
        (time, phase).prop_map(|(time, phase)| Stage::Running(time, phase)),
        Just(Stage::Stopping),
    ];
    (class, 0..4_usize, 0..=MAX_PREEMPTIONS, stage).prop_map(|(class, line, preempted, stage)| View {
        id: 0,
        class,
        line,
        preempted,
        stage,
    })
}

proptest! {
    #[test]
    fn whatever_is_under_way_the_rules_hold(
        mut flights in prop::collection::vec(any_view(), 0..12),
        max_background in 1..4_usize,
        resumes: bool,
        one_per_line: bool,
    ) {
        for (id, flight) in flights.iter_mut().enumerate() {
            flight.id = id as u64;
        }
        let limits = Limits { max_background, resumes, one_per_line };
        let actions = schedule(&flights, limits);
        let slots_of = |flights: &[View]| {
            let mut flights = flights.to_vec();
            if one_per_line {
                lend_classes(&mut flights);
            }
            flights.iter().filter(|flight| flight.class < Class::Kubelet && !flight.is_queued()).count()
        };
        let slots = slots_of(&flights);
        for action in &actions {
            match *action {
                Action::Start(id) => {
                    prop_assert!(flights[id as usize].is_queued());
                    flights[id as usize].stage = Stage::Running(Duration::ZERO, Phase::Unknown);
                }
                Action::Preempt(id) => {
                    let flight = &flights[id as usize];
                    prop_assert!(resumes && flight.is_running() && flight.class < Class::Kubelet);
                    prop_assert!(flight.preempted < MAX_PREEMPTIONS);
                    let unpacking = matches!(flight.stage, Stage::Running(_, Phase::Unpacking));
                    prop_assert!(!unpacking);
                    flights[id as usize].stage = Stage::Stopping;
                }
            }
        }
        // Slots are never exceeded by what was started.
        prop_assert!(slots_of(&flights) <= slots.max(max_background));
        // Every kubelet's pull runs, unless its line is taken.
        for flight in flights.iter().filter(|flight| flight.class == Class::Kubelet && flight.is_queued()) {
            let taken = flights.iter().any(|other| other.line == flight.line && !other.is_queued());
            prop_assert!(one_per_line && taken);
        }
        // There is nothing more to do until something changes.
        prop_assert_eq!(schedule(&flights, limits), []);
    }
}
