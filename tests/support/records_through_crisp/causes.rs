//! Why containers were made again, with real ends.

use std::time::{Duration, Instant};

use crisp::admin::client;
use crisp::container::history::{Restart, Restarts};
use crisp::container::record::LABEL;
use k8s_cri::v1::ContainerState;

use super::{Lab, PATIENCE, Pod, SECRET, Spec};

impl Lab {
    pub(super) async fn causes_are_told(&mut self) {
        let pod = self.pod("causes", 0).await;
        let spec = |script: &str, attempt| Spec {
            name: "app".to_owned(),
            attempt,
            hash: "11111111".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned(), format!("--password={SECRET}")],
            env: vec![("PASSWORD".to_owned(), SECRET.to_owned())],
            ..Spec::default()
        };
        let crashing = |attempt| spec("exit 3", attempt);
        let first = self.create(&pod, &crashing(0)).await;
        assert!(!self.label(&first).await.expect("a record").contains(SECRET));
        self.run_to_end(&first).await;
        let restart = self.again(&pod, &crashing(1), 1).await;
        assert_eq!((restart.cause.as_str(), restart.exit_code), ("crashed", Some(3)), "{restart:?}");
        assert_eq!((restart.previous.as_str(), restart.differences.len()), (first.as_str(), 0));

        // Another image by name, and another secret: the kubelet's hash is another one, too.
        self.run_to_end(&restart.id).await;
        let mut edited = crashing(2);
        edited.image = Some("example.com/edited:2".to_owned());
        edited.hash = "22222222".to_owned();
        edited.env[0].1 += "-rotated";
        let restart = self.again(&pod, &edited, 2).await;
        assert_eq!(restart.cause, "spec-changed", "{restart:?}");
        let expected =
            [format!("image: {} → example.com/edited:2", self.image), "env.PASSWORD: changed".to_owned()];
        assert_eq!(restart.differences, expected);

        // Stopped by the kubelet, as after a failed probe.
        let mut running = Spec { attempt: 3, ..edited.clone() };
        running.args[1] = "trap 'exit 0' TERM; while true; do sleep 0.1; done".to_owned();
        self.run_to_end(&restart.id).await;
        let restart = self.again(&pod, &running, 3).await;
        assert_eq!(restart.cause, "crashed", "{restart:?}");
        assert_eq!(restart.differences, ["args[1]: changed"]);
        self.start(&restart.id).await;
        self.stop(&restart.id).await;
        running.attempt = 4;
        let restart = self.again(&pod, &running, 4).await;
        assert_eq!(restart.cause, "stopped", "{restart:?}");

        // The sandbox goes, and with it the container.
        self.start(&restart.id).await;
        self.end(&pod).await;
        let pod = self.pod("causes", 1).await;
        running.attempt = 5;
        let restart = self.again(&pod, &running, 5).await;
        assert_eq!(restart.cause, "sandbox-recreated", "{restart:?}");
        self.out_of_memory(&pod, running, 6).await;
        self.end(&pod).await;
        self.survives_a_crash().await;
        self.tell("crash, edited image, stop, new sandbox and OOM kill are told right");
    }

    async fn out_of_memory(&mut self, pod: &Pod, mut spec: Spec, count: usize) {
        spec.name = "hungry".to_owned();
        spec.attempt = 0;
        spec.memory = 16 << 20;
        spec.args[1] = "tail /dev/zero".to_owned();
        let id = self.create(pod, &spec).await;
        self.run_to_end(&id).await;
        let status = self.status(&self.direct, &id).await;
        spec.attempt = 1;
        let restart = self.again(pod, &spec, count).await;
        if status.reason == "OOMKilled" {
            assert_eq!(restart.cause, "oom-killed", "{restart:?}");
        } else {
            self.tell(&format!("no OOM kill here: {} ({})", status.exit_code, status.reason));
        }
    }

    /// `kill -9` of crisp costs no entry.
    async fn survives_a_crash(&mut self) {
        let before = self.restarts().await;
        self.crisp.kill();
        self.crisp.restart();
        assert_eq!(self.restarts().await, before);
    }

    /// Starts a container and waits for its end.
    async fn run_to_end(&self, id: &str) {
        self.start(id).await;
        let began = Instant::now();
        loop {
            let status = self.status(&self.cri, id).await;
            assert!(!status.labels.contains_key(LABEL));
            if status.state() == ContainerState::ContainerExited {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{status:?} does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes a container again, and gives what is told of it: the restart of that number.
    async fn again(&self, pod: &Pod, spec: &Spec, count: usize) -> Restart {
        let id = self.create(pod, spec).await;
        let began = Instant::now();
        loop {
            let restarts = self.restarts().await;
            if let Some(restart) = restarts.get(count - 1) {
                assert_eq!(restart.id, id, "{restarts:?}");
                return restart.clone();
            }
            assert!(began.elapsed() < PATIENCE, "nothing is told of {id}: {restarts:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn restarts(&self) -> Vec<Restart> {
        let restarts =
            client::get::<Restarts>(&self.crisp.admin, "/v1/restarts?pod=causes&namespace=records").await;
        restarts.expect("the admin API answers").restarts
    }
}
