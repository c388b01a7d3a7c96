//! The images and security profiles of a simulated runtime. Every reference can be pulled. Nothing is downloaded.

use criswitch_cri::codec::cri;
use criswitch_cri::codec::cri::image_service_server::ImageService;
use tonic::codegen::BoxStream;
use tonic::{Request, Status};

use super::ids::{find, hex};
use super::runtime::{Reply, Service};
use super::settings::ImageIds;
use super::stats::usage;
use super::store::{Store, info};

/// The size of every image made from a reference.
const IMAGE_BYTES: u64 = 4 << 20;
/// The size of every security profile.
const PROFILE_BYTES: u64 = 1 << 10;

impl Store {
    /// Returns the id of a reference's image, and adds the image if it is absent.
    pub fn add_image(&mut self, reference: &str) -> String {
        if let Some(image) = self.find_image(reference) {
            return image.id.clone();
        }
        let name = full_reference(reference);
        let digest = hex(&name);
        let id = match self.settings.image_ids {
            ImageIds::Prefixed => format!("sha256:{digest}"),
            ImageIds::Bare => digest.clone(),
        };
        let (tags, digests) = match name.split_once('@') {
            Some(_) => (vec![], vec![name]),
            None => (
                vec![name.clone()],
                vec![format!("{}@sha256:{digest}", repository(&name))],
            ),
        };
        self.images.push(cri::Image {
            id: id.clone(),
            repo_tags: tags,
            repo_digests: digests,
            size: IMAGE_BYTES,
            ..Default::default()
        });
        id
    }

    /// Finds an image by tag, digest, id, or prefix of an id. containerd's ids match with and without `sha256:`,
    /// CRI-O's only without.
    pub fn find_image(&self, reference: &str) -> Option<&cri::Image> {
        if reference.is_empty() {
            return None;
        }
        let name = full_reference(reference);
        let by_name = self
            .images
            .iter()
            .find(|image| image.repo_tags.contains(&name) || image.repo_digests.contains(&name));
        let id = match self.settings.image_ids {
            ImageIds::Prefixed => reference.trim_start_matches("sha256:"),
            ImageIds::Bare => reference,
        };
        let ids = self
            .images
            .iter()
            .map(|image| image.id.trim_start_matches("sha256:"));
        by_name.or_else(|| find(ids, id).ok().map(|place| &self.images[place]))
    }

    /// Lists images, filtered as CRI-O does. containerd ignores the filter.
    pub fn list_images(&self, filter: Option<cri::ImageFilter>) -> Vec<cri::Image> {
        match filter.and_then(|filter| filter.image) {
            Some(image) if !image.image.is_empty() => {
                self.find_image(&image.image).cloned().into_iter().collect()
            }
            _ => self.images.clone(),
        }
    }

    fn image_status(
        &self,
        request: &cri::ImageStatusRequest,
    ) -> Result<cri::ImageStatusResponse, Status> {
        let reference = reference_of(request.image.as_ref());
        self.resolve(&reference)?;
        let image = self.find_image(&reference).cloned();
        let verbose = request.verbose && image.is_some();
        Ok(cri::ImageStatusResponse {
            image,
            info: info(verbose, || ("info", serde_json::json!({ "imageSpec": {} }))),
        })
    }

    /// CRI-O treats `sha256:<hex>` as a name without a registry, and fails if no registries for such names are
    /// configured.
    fn resolve(&self, reference: &str) -> Result<(), Status> {
        if self.settings.image_ids == ImageIds::Bare && reference.starts_with("sha256:") {
            return Err(Status::unknown(format!(
                "short-name {reference:?} did not resolve to an alias and no unqualified-search registries are defined"
            )));
        }
        Ok(())
    }

    /// Removes an image. An unknown image counts as removed, unless the runtime rejects it as cri-dockerd does.
    fn remove_image(&mut self, reference: &str) -> Result<(), Status> {
        let id = self.find_image(reference).map(|image| image.id.clone());
        if id.is_none() && self.settings.rejects_unknown_images {
            return Err(Status::unknown(format!(
                "unrecognized image ID {reference}"
            )));
        }
        self.images.retain(|image| Some(&image.id) != id.as_ref());
        Ok(())
    }

    /// Adds a reference to the security profile with its digest. Returns whether the profile was there.
    pub fn add_profile(&mut self, reference: &str) -> Result<bool, Status> {
        let Some((_, digest)) = reference.split_once('@') else {
            return Err(Status::invalid_argument(format!(
                "security profile invalid: {reference:?} has no digest"
            )));
        };
        let found = self
            .profiles
            .iter_mut()
            .find(|profile| profile.digest == digest);
        let cached = found.is_some();
        match found {
            Some(profile) if profile.refs.iter().any(|it| it == reference) => {}
            Some(profile) => profile.refs.push(reference.to_owned()),
            None => self.profiles.push(cri::SecurityProfileInfo {
                digest: digest.to_owned(),
                refs: vec![reference.to_owned()],
                size: PROFILE_BYTES,
            }),
        }
        Ok(cached)
    }

    fn image_fs_info(&self) -> cri::ImageFsInfoResponse {
        let mountpoint = format!("/var/lib/{}", self.settings.runtime_name);
        let bytes = self.images.iter().map(|image| image.size).sum();
        let files = usage(&mountpoint, bytes, self.images.len() as u64);
        let of = |has: bool| has.then(|| files.clone()).into_iter().collect();
        cri::ImageFsInfoResponse {
            image_filesystems: of(self.settings.has_image_disk),
            container_filesystems: of(self.settings.has_container_disk),
        }
    }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(
        &self,
        r: Request<cri::ListImagesRequest>,
    ) -> Reply<cri::ListImagesResponse> {
        self.with(r, |store, r| {
            Ok(cri::ListImagesResponse {
                images: store.list_images(r.filter),
            })
        })
    }

    async fn stream_images(
        &self,
        r: Request<cri::StreamImagesRequest>,
    ) -> Reply<BoxStream<cri::StreamImagesResponse>> {
        self.stream(
            |store| store.list_images(r.into_inner().filter),
            |images| cri::StreamImagesResponse { images },
        )
    }

    async fn image_status(
        &self,
        r: Request<cri::ImageStatusRequest>,
    ) -> Reply<cri::ImageStatusResponse> {
        self.with(r, |store, r| store.image_status(&r))
    }

    async fn pull_image(&self, r: Request<cri::PullImageRequest>) -> Reply<cri::PullImageResponse> {
        self.with(r, |store, r| {
            let reference = reference_of(r.image.as_ref());
            if reference.is_empty() {
                return Err(Status::unknown("failed to parse image reference \"\""));
            }
            Ok(cri::PullImageResponse {
                image_ref: store.add_image(&reference),
            })
        })
    }

    async fn remove_image(
        &self,
        r: Request<cri::RemoveImageRequest>,
    ) -> Reply<cri::RemoveImageResponse> {
        self.with(r, |store, r| {
            store.remove_image(&reference_of(r.image.as_ref()))?;
            Ok(cri::RemoveImageResponse {})
        })
    }

    async fn image_fs_info(
        &self,
        r: Request<cri::ImageFsInfoRequest>,
    ) -> Reply<cri::ImageFsInfoResponse> {
        self.with(r, |store, _| Ok(store.image_fs_info()))
    }

    async fn pull_security_profile(
        &self,
        r: Request<cri::PullSecurityProfileRequest>,
    ) -> Reply<cri::PullSecurityProfileResponse> {
        self.with(r, |store, r| {
            Ok(cri::PullSecurityProfileResponse {
                cached: store.add_profile(&reference_of(r.image.as_ref()))?,
            })
        })
    }

    async fn list_security_profiles(
        &self,
        r: Request<cri::ListSecurityProfilesRequest>,
    ) -> Reply<cri::ListSecurityProfilesResponse> {
        self.with(r, |store, _| {
            Ok(cri::ListSecurityProfilesResponse {
                profiles: store.profiles.clone(),
            })
        })
    }

    async fn remove_security_profile(
        &self,
        r: Request<cri::RemoveSecurityProfileRequest>,
    ) -> Reply<cri::RemoveSecurityProfileResponse> {
        self.with(r, |store, r| {
            store.profiles.retain(|profile| profile.digest != r.digest);
            Ok(cri::RemoveSecurityProfileResponse {})
        })
    }
}

fn reference_of(image: Option<&cri::ImageSpec>) -> String {
    image.map(|image| image.image.clone()).unwrap_or_default()
}

/// The full form of a reference: `docker.io/library/busybox:latest` for `busybox`.
fn full_reference(reference: &str) -> String {
    let first = reference.split('/').next().unwrap_or_default();
    let has_registry =
        reference.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let name = match (has_registry, reference.contains('/')) {
        (true, _) => reference.to_owned(),
        (false, true) => format!("docker.io/{reference}"),
        (false, false) => format!("docker.io/library/{reference}"),
    };
    let last = name.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) {
        name
    } else {
        format!("{name}:latest")
    }
}

/// A full reference without its tag.
fn repository(name: &str) -> &str {
    name.rsplit_once(':')
        .map_or(name, |(repository, _)| repository)
}
