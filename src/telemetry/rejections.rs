//! The last pods that were not created, for `criswitch status` and `criswitch explain`. Keeps names and error texts
//! without credentials.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

/// The most pods that are remembered. The kubelet tries a pod again and again, which makes one entry.
pub const MOST: usize = 32;

/// The pods whose last `RunPodSandbox` failed.
#[derive(Debug, Default)]
pub struct Rejections(Mutex<VecDeque<Rejection>>);

/// A pod that was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The Kubernetes namespace.
    pub namespace: String,
    /// The name in the namespace.
    pub name: String,
    /// The uid.
    pub uid: String,
    /// The handler in the request; `None` if the request names none.
    pub asked_handler: Option<String>,
    /// The row of the handler; `None` if the call ended before criswitch chose a row, for example because no row has
    /// the name in the request.
    pub handler: Option<String>,
    /// The backend of the handler; `None` if the call was sent to none.
    pub backend: Option<String>,
    /// The gRPC code of the last failure.
    pub code: String,
    /// The error text of the last failure.
    pub error: String,
    /// The time of the first failure.
    pub first: SystemTime,
    /// The time of the last failure.
    pub last: SystemTime,
    /// The number of failures.
    pub times: u64,
}

impl Rejections {
    /// Remembers a failure. Earlier failures of the same pod become one entry with this one.
    pub(crate) fn note(&self, mut rejection: Rejection) {
        let mut all = self.0.lock();
        let place = all.iter().position(|it| it.pod() == rejection.pod());
        if let Some(before) = place.and_then(|place| all.remove(place)) {
            rejection.first = before.first;
            rejection.times = before.times.saturating_add(1);
        }
        if all.len() == MOST {
            all.pop_front();
        }
        all.push_back(rejection);
    }

    /// Forgets a pod that was created after all.
    pub(crate) fn created(&self, namespace: &str, name: &str, uid: &str) {
        let pod = (namespace, name, uid);
        self.0.lock().retain(|other| other.pod() != pod);
    }

    /// The remembered pods, the newest failure at the end.
    pub fn all(&self) -> Vec<Rejection> {
        self.0.lock().iter().cloned().collect()
    }
}

impl Rejection {
    fn pod(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(name: &str, seconds: u64) -> Rejection {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Rejection {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: "uid".to_owned(),
            asked_handler: None,
            handler: Some("gvisor".to_owned()),
            backend: None,
            code: "Unavailable".to_owned(),
            error: "down".to_owned(),
            first: at,
            last: at,
            times: 1,
        }
    }

    #[test]
    fn repeated_failures_of_a_pod_are_one_entry_and_its_creation_removes_it() {
        let rejections = Rejections::default();
        rejections.note(of("web", 1));
        rejections.note(of("db", 2));
        rejections.note(of("web", 3));
        let all = rejections.all();
        let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["db", "web"]);
        let web = Rejection {
            first: of("web", 1).first,
            times: 2,
            ..of("web", 3)
        };
        assert_eq!(all.last(), Some(&web));
        rejections.created("default", "web", "uid");
        assert_eq!(rejections.all(), [of("db", 2)]);
    }

    #[test]
    fn the_oldest_of_too_many_pods_is_forgotten() {
        let rejections = Rejections::default();
        for number in 0..=MOST {
            rejections.note(of(&number.to_string(), 1));
        }
        let all = rejections.all();
        assert_eq!(all.len(), MOST);
        assert_eq!(all.first().map(|one| one.name.as_str()), Some("1"));
    }
}
