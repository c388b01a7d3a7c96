//! The image of a trial's container: one that the handler's backend has, or the one that the user names.

use criswitch_client::running::Running;
use criswitch_cri::codec::cri::{
    Image, ImageFilter, ImageSpec, ImageStatusRequest, ListImagesRequest, PullImageRequest,
};

use super::call::{CALL_LIMIT, PULL_LIMIT, TryFailure, reply};

/// Images with these names usually have a shell, and the first ones are small.
#[rustfmt::skip]
const WITH_SHELL: [&str; 8] = ["busybox", "alpine", "toybox", "bash", "debian-slim", "debian", "ubuntu", "nanoserver"];
/// Images with this name have nothing except a process that waits.
const PAUSE: &str = "pause";
/// The number of images that are tried. The CRI does not say which images have a shell.
const MOST: usize = 5;

/// An image that a container may use.
pub(super) struct Candidate {
    /// The name that is shown.
    pub(super) name: String,
    pub(super) spec: ImageSpec,
}

/// The images that the handler's backend has, at most [`MOST`], the best first.
///
/// # Errors
/// The list fails, or the backend has no image that may have a shell.
pub(super) async fn present(daemon: &Running, handler: &str) -> Result<Vec<Candidate>, TryFailure> {
    let request = ListImagesRequest {
        filter: Some(ImageFilter {
            image: Some(spec(String::new(), handler)),
        }),
    };
    let listed = reply(
        CALL_LIMIT,
        "ListImages",
        daemon.images().list_images(request),
    )
    .await?;
    let candidates = chosen(listed.images);
    if candidates.is_empty() {
        return Err(TryFailure::needs_image(
            "the backend has no image with a shell; pull one there, or name one",
        ));
    }
    Ok(candidates)
}

/// Whether the handler's backend has an image.
pub(super) async fn has(daemon: &Running, handler: &str, name: &str) -> Result<bool, TryFailure> {
    let request = ImageStatusRequest {
        image: Some(spec(name.to_owned(), handler)),
        verbose: false,
    };
    Ok(reply(
        CALL_LIMIT,
        "ImageStatus",
        daemon.images().image_status(request),
    )
    .await?
    .image
    .is_some())
}

/// Pulls an image into the store of the handler's backend.
pub(super) async fn pull(daemon: &Running, handler: &str, name: &str) -> Result<(), TryFailure> {
    let request = PullImageRequest {
        image: Some(spec(name.to_owned(), handler)),
        ..PullImageRequest::default()
    };
    reply(PULL_LIMIT, "PullImage", daemon.images().pull_image(request))
        .await
        .map(drop)
}

/// The image of this name, as a candidate.
pub(super) fn named(name: &str) -> Candidate {
    Candidate {
        name: name.to_owned(),
        spec: spec(name.to_owned(), ""),
    }
}

fn spec(image: String, handler: &str) -> ImageSpec {
    ImageSpec {
        image,
        runtime_handler: handler.to_owned(),
        ..ImageSpec::default()
    }
}

/// Sorts images by the place of their name in [`WITH_SHELL`], then by size, and keeps at most [`MOST`]. Drops pinned
/// images, pause images and images without a name.
fn chosen(images: Vec<Image>) -> Vec<Candidate> {
    let mut sorted: Vec<_> = images
        .iter()
        .filter(|image| !image.pinned)
        .filter_map(|image| {
            let name = image.repo_tags.first().or(image.repo_digests.first())?;
            let place = WITH_SHELL
                .iter()
                .position(|known| short_name(name) == *known);
            Some((place.unwrap_or(WITH_SHELL.len()), image.size, name))
        })
        .filter(|(.., name)| short_name(name) != PAUSE)
        .collect();
    sorted.sort_by_key(|(place, size, _)| (*place, *size));
    sorted.truncate(MOST);
    sorted.into_iter().map(|(.., name)| named(name)).collect()
}

/// The last part of an image's name, without tag and digest: `busybox` of `docker.io/library/busybox:1.36`.
fn short_name(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split(':').next().unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, size: u64) -> Image {
        Image {
            repo_tags: vec![name.to_owned()],
            size,
            ..Image::default()
        }
    }

    #[test]
    fn images_with_a_known_shell_come_first_and_then_the_smallest() {
        let pinned = Image {
            pinned: true,
            ..image("registry.example/sandbox:1", 1)
        };
        let nameless = Image {
            repo_tags: Vec::new(),
            ..image("", 1)
        };
        let images = vec![
            image("registry.k8s.io/pause:3.10", 1),
            image("example.com:5000/app:2", 30),
            image("example.com:5000/tool@sha256:abc", 20),
            image("docker.io/library/ubuntu:24.04", 90),
            image("docker.io/library/busybox:1.36", 40),
            pinned,
            nameless,
        ];
        let chosen = chosen(images).into_iter().map(|it| it.name);
        assert_eq!(
            chosen.collect::<Vec<_>>(),
            [
                "docker.io/library/busybox:1.36",
                "docker.io/library/ubuntu:24.04",
                "example.com:5000/tool@sha256:abc",
                "example.com:5000/app:2",
            ]
        );
    }
}
