//! Remembers `ImageStatus` calls that the kubelet makes for pods: the pods that got the answer "absent", and the pods
//! that have their image and no container yet. `RemoveImage` spares the images of the latter. In memory only; does no
//! I/O.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use criswitch_config::BackendId;
use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::SEEN_ANNOTATION;
use criswitch_cri::rpc::fields::IMAGE_REFERENCE;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::call::Call;
use crate::switch::image_references::{ImageNames, with_tag};

/// The most "absent" answers that are remembered. A node has a few hundred containers.
const ABSENT: usize = 4096;
/// How long a pod is remembered after it got the answer that its image is present. After that answer the kubelet asks
/// for the image's user, but first each device plugin of the pod may take 30 s. If the pod is forgotten too early, it
/// may get the user of the image in another pod's store, or its image may be removed before it starts.
const ASKING: Duration = Duration::from_secs(600);
/// How long pods are remembered after a call for the user of their image has failed. The call names no pod, so any of
/// these pods may still make it. If a pod is forgotten too early, it may get the user of the image in another pod's
/// store. The kubelet starts the failed pod again after 10 seconds. By then the pod is forgotten.
const FAILED: Duration = Duration::from_secs(5);
/// The most pods that are remembered until they create their container. A node starts a few containers a second.
const MOST_ASKING: usize = 1024;
/// The longest name of an image or pod that is remembered, in bytes. An image's name has at most 255 bytes, its tag
/// 128, and its digest less than 200.
const LONGEST_NAME: usize = 1024;

/// The `ImageStatus` calls that criswitch remembers.
#[derive(Debug, Default)]
pub(crate) struct PodRequests {
    /// For each answer "absent": a hash of the pod's annotation `kubernetes.io/config.seen` and the image reference.
    absent: HashSet<u64>,
    hasher: RandomState,
    /// The pods that have their image and no container of it yet.
    asking: Vec<Asking>,
}

/// A pod that got the answer that its image is present. The next call asks for the image's user, and does not name the
/// pod.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    /// The pod's annotation `kubernetes.io/config.seen`.
    pub seen: String,
    /// The image reference in the pod's call, with its tag.
    pub reference: String,
    /// The image id in the answer.
    pub id: String,
    /// The backends whose image stores the pod may use.
    pub stores: Vec<BackendId>,
    /// Whether the pod's container is being created: the pod does not ask for the image's user any more.
    is_creating: bool,
    /// The time at which criswitch forgets the pod.
    until: Instant,
}

impl Asking {
    pub(crate) fn new(seen: &str, reference: &str, id: &str, stores: Vec<BackendId>) -> Asking {
        Asking {
            seen: seen.to_owned(),
            reference: with_tag(reference),
            id: id.to_owned(),
            stores,
            is_creating: false,
            until: Instant::now() + ASKING,
        }
    }

    fn asks_for(&self, image: &AskedImage<'_>) -> bool {
        self.id == image.id || self.reference == image.reference
    }

    fn is_same_question(&self, other: &Asking) -> bool {
        (&self.seen, &self.reference) == (&other.seen, &other.reference)
    }

    fn is_remembered(&self) -> bool {
        [&self.seen, &self.reference, &self.id]
            .iter()
            .all(|name| name.len() <= LONGEST_NAME)
    }
}

/// The image that a call names by an id or a reference, in both forms.
struct AskedImage<'a> {
    id: &'a str,
    /// The same text with a tag.
    reference: String,
}

impl AskedImage<'_> {
    fn of(image: &str) -> AskedImage<'_> {
        AskedImage {
            id: image,
            reference: with_tag(image),
        }
    }
}

impl PodRequests {
    /// Records that this pod gets the answer "absent" for `reference`. Returns whether it got that answer before.
    ///
    /// After the answer "absent" the kubelet pulls the image, and the pull names the pod by its uid. A pod that asks
    /// again without a pull never pulls (`imagePullPolicy: Never`).
    pub(crate) fn note_absent_image(&mut self, seen: &str, reference: &str) -> bool {
        let pair = self.hasher.hash_one((seen, reference));
        if self.absent.len() >= ABSENT && !self.absent.contains(&pair) {
            // Clearing the set does little harm: a forgotten pod only gets the answer "absent" once more. A full set is
            // rarer than a restart of the kubelet.
            self.absent.clear();
        }
        !self.absent.insert(pair)
    }

    /// Records that a pod got the answer that its image is present.
    pub(crate) fn asks(&mut self, pod: Asking) {
        self.forget_old();
        if self.asking.len() >= MOST_ASKING {
            // All pods are forgotten. If some remained, a later answer would consider only these, and not the forgotten
            // ones.
            self.asking.clear();
        }
        if pod.is_remembered() {
            // A pod that asks again was started again, so its earlier call no longer counts.
            self.asking.retain(|other| !other.is_same_question(&pod));
            self.asking.push(pod);
        }
    }

    /// Records that a pod creates a container of `image`, which the pod's manifest calls `name`. Returns the last
    /// answer to the pod, if any. The pod awaits its image until [`PodRequests::created`].
    pub(crate) fn creates(&mut self, seen: &str, image: &str, name: &str) -> Option<Asking> {
        self.forget_old();
        let (image, name) = (AskedImage::of(image), AskedImage::of(name));
        let mut last = None;
        for asking in &mut self.asking {
            if asking.seen == seen && (asking.asks_for(&image) || asking.asks_for(&name)) {
                asking.is_creating = true;
                last = Some(asking);
            }
        }
        last.cloned()
    }

    /// Records that the call which creates a container of the pod has an answer. The kubelet creates the containers of
    /// a pod one after the other, so at most one of them is being created.
    pub(crate) fn created(&mut self, seen: &str) {
        self.asking
            .retain(|asking| !asking.is_creating || asking.seen != seen);
    }

    /// Returns the stores that pods with this image may use, each store once. Ignores pods that already have a
    /// container of the image.
    pub(crate) fn stores_of(&mut self, image: &str) -> Vec<BackendId> {
        self.forget_old();
        let image = AskedImage::of(image);
        let asking = self
            .asking
            .iter()
            .filter(|pod| !pod.is_creating && pod.asks_for(&image));
        let mut stores: Vec<_> = asking.flat_map(|pod| pod.stores.clone()).collect();
        stores.sort_unstable();
        stores.dedup();
        stores
    }

    /// Whether a pod that may use this store has this image, an encoded `Image`, and no container of it yet.
    ///
    /// # Errors
    /// If the `Image` is not valid protobuf.
    pub(crate) fn is_awaited(&mut self, store: BackendId, image: &[u8]) -> Result<bool, Malformed> {
        self.forget_old();
        let names = ImageNames::of(image)?;
        Ok(self
            .asking
            .iter()
            .filter(|it| it.stores.contains(&store))
            .any(|pod| names.have(&pod.id) || names.have(&pod.reference)))
    }

    /// Records that a call for the user of this image has failed. The kubelet then starts the pods with this image
    /// again, so they are soon forgotten.
    pub(crate) fn fail(&mut self, image: &str) {
        let until = Instant::now() + FAILED;
        let image = AskedImage::of(image);
        self.asking
            .iter_mut()
            .filter(|pod| pod.asks_for(&image))
            .for_each(|pod| pod.until = pod.until.min(until));
    }

    fn forget_old(&mut self) {
        let now = Instant::now();
        self.asking.retain(|pod| pod.until > now);
    }
}

/// Records the answer to the pod in `call`: the pod's image is present in `stores` and has the id `id`.
pub(crate) fn note_asking(
    requests: &Mutex<PodRequests>,
    call: &Call,
    stores: Vec<BackendId>,
    id: &str,
) {
    let message = call.message();
    let reference = protobuf::string(&message, IMAGE_REFERENCE).unwrap_or_default();
    if let Some(seen) = seen_by(call, &message).filter(|_| !id.is_empty()) {
        let pod = Asking::new(seen, reference, id, stores);
        requests.lock().asks(pod);
    }
}

/// Returns the annotation `kubernetes.io/config.seen` of the pod in `call`, a call of the kubelet. `None` for a call of
/// a user other than root and criswitch's own user: such a user could make criswitch forget the kubelet's pods.
pub(crate) fn seen_by<'a>(call: &Call, message: &'a [u8]) -> Option<&'a str> {
    if call.user.is_other() {
        return None;
    }
    let seen = protobuf::entry(message, call.row.pod_annotations()?, SEEN_ANNOTATION);
    seen.ok().flatten().filter(|seen| !seen.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::ids::{B, C, D};

    fn asking(seen: &str, image: &str, store: BackendId) -> Asking {
        Asking::new(seen, image, "sha256:1", vec![store])
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_counts_as_asking_for_ten_minutes_or_until_its_container_is_created() {
        let mut requests = PodRequests::default();
        requests.asks(asking("a", "app", B));
        requests.asks(asking("b", "app:latest", C));
        requests.asks(asking("b", "web:1", D));
        for image in ["app", "app:latest", "sha256:1"] {
            let all = requests.stores_of(image);
            assert!(all.starts_with(&[B, C]), "{image}: {all:?}");
        }
        assert!(requests.stores_of("app:2").is_empty());
        assert!(requests.creates("c", "sha256:1", "app").is_none());
        let created = requests.creates("b", "other", "app").unwrap();
        assert_eq!(
            (created.stores, requests.stores_of("app")),
            (vec![C], vec![B])
        );
        assert!(requests.asking.iter().any(|pod| pod.is_creating));
        requests.created("b");
        assert!(!requests.asking.iter().any(|pod| pod.is_creating));
        tokio::time::advance(ASKING).await;
        assert!(requests.stores_of("app").is_empty());
        assert!(requests.asking.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_request_of_a_pod_counts_until_the_pod_should_have_asked_again() {
        let mut requests = PodRequests::default();
        requests.asks(asking("a", "app", B));
        requests.asks(asking("b", "app", C));
        requests.fail("app");
        // The first pod starts over before the second pod asks.
        requests.asks(asking("a", "app", B));
        assert_eq!(requests.stores_of("app"), [B, C]);
        tokio::time::advance(FAILED).await;
        assert_eq!(requests.stores_of("app"), [B]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_is_awaited_in_the_stores_of_pods_that_ask_for_it_by_any_name() {
        let image = protobuf::with_string(&[], &[1], "sha256:1");
        let image = protobuf::with_string(&image, &[2], "docker.io/library/app:latest");
        for (reference, id) in [
            ("other", "1"),
            ("other", "sha256:1"),
            ("app", "other"),
            ("other", "docker.io/library/app:latest"),
        ] {
            let mut requests = PodRequests::default();
            requests.asks(Asking::new("a", reference, id, vec![B]));
            requests.asks(Asking::new("b", "other", "2", vec![C]));
            let mut is_awaited = |store| requests.is_awaited(store, &image).unwrap();
            assert!(is_awaited(B), "{reference} {id}");
            assert!(!is_awaited(C));
            tokio::time::advance(ASKING).await;
            assert!(!is_awaited(B));
        }
    }

    #[test]
    fn a_repeated_request_of_a_pod_replaces_the_earlier_one() {
        let mut requests = PodRequests::default();
        for store in [B, C] {
            requests.asks(asking("a", "app", store));
        }
        assert_eq!(requests.stores_of("app"), [C]);
    }

    #[test]
    fn pods_that_ask_and_the_length_of_their_names_are_limited() {
        let mut requests = PodRequests::default();
        let longest = "x".repeat(LONGEST_NAME);
        let longer = "x".repeat(LONGEST_NAME + 1);
        requests.asks(asking(&longest, "a:1", B));
        requests.asks(asking(&longer, "a:1", C));
        requests.asks(asking("a", &longer, D));
        assert_eq!(requests.stores_of("a:1"), [B]);
        for number in 0..2 * MOST_ASKING {
            requests.asks(asking(&number.to_string(), "b:1", B));
            assert!(requests.asking.len() <= MOST_ASKING);
        }
    }

    #[test]
    fn an_absent_image_is_remembered_by_pod_and_reference_up_to_a_limit() {
        let mut requests = PodRequests::default();
        assert!(!requests.note_absent_image("a", "app"));
        assert!(requests.note_absent_image("a", "app"));
        assert!(!requests.note_absent_image("b", "app"));
        assert!(!requests.note_absent_image("a", "web"));
        for number in 0..2 * ABSENT {
            requests.note_absent_image(&number.to_string(), "app");
            assert!(requests.absent.len() <= ABSENT);
        }
    }
}
