//! The kubelet's image calls for a container, in the kubelet's order: it looks up the image with the pod's annotations,
//! pulls the image for the pod, asks for the image's user without naming the pod, and creates the container.

use criswitch_cri::codec::cri;
use criswitch_cri::rpc::SEEN_ANNOTATION;
use tonic::Status;

use crate::support::{Rig, Sim, container_config, image_spec, pod_config};

/// One run of the kubelet. Each run writes a new `config.seen` annotation for every pod.
#[derive(Clone, Copy)]
pub struct Kubelet<'a> {
    pub rig: &'a Rig,
    start: u32,
}

impl<'a> Kubelet<'a> {
    /// The first run, which created the pods. [`pod_config`] has the annotations of this run.
    pub fn new(rig: &'a Rig) -> Kubelet<'a> {
        Kubelet { rig, start: 0 }
    }

    /// The kubelet after a restart.
    pub fn restarted(self) -> Kubelet<'a> {
        let start = self.start + 1;
        Kubelet { start, ..self }
    }

    /// The configuration of a pod as this run sends it.
    pub fn config(&self, pod: &str) -> cri::PodSandboxConfig {
        let mut config = pod_config(pod);
        if self.start > 0 {
            let seen = format!("start {} {pod}", self.start);
            config.annotations.insert(SEEN_ANNOTATION.to_owned(), seen);
        }
        config
    }

    /// The pod's image, or `None` if the image must be pulled.
    pub async fn find(&self, pod: &str, image: &str) -> Result<Option<cri::Image>, Status> {
        let image = cri::ImageSpec {
            annotations: self.config(pod).annotations,
            ..image_spec(image)
        };
        status(self.rig, image).await
    }

    /// Looks up the image as the kubelet does to learn a container's user. The request names no pod.
    pub async fn user(&self, image: &str) -> Result<Option<cri::Image>, Status> {
        status(self.rig, image_spec(image)).await
    }

    pub async fn pull(&self, pod: &str, image: &str) -> Result<String, Status> {
        let request = cri::PullImageRequest {
            image: Some(image_spec(image)),
            auth: Some(cri::AuthConfig {
                password: "secret".to_owned(),
                ..Default::default()
            }),
            sandbox_config: Some(self.config(pod)),
        };
        let pulled = self.rig.images().pull_image(request).await?;
        Ok(pulled.into_inner().image_ref)
    }

    /// Creates a container in the pod that has the id `id` and the name `pod`. `found` is the image's id, and `image`
    /// is the image's name in the manifest.
    pub async fn create(
        &self,
        (id, pod): (&str, &str),
        found: &str,
        image: &str,
    ) -> Result<String, Status> {
        let mut config = container_config(pod, found);
        if let Some(spec) = &mut config.image {
            spec.user_specified_image = image.to_owned();
        }
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: id.to_owned(),
            config: Some(config),
            sandbox_config: Some(self.config(pod)),
        };
        let created = self.rig.runtime().create_container(request).await?;
        Ok(created.into_inner().container_id)
    }
}

async fn status(rig: &Rig, image: cri::ImageSpec) -> Result<Option<cri::Image>, Status> {
    let request = cri::ImageStatusRequest {
        image: Some(image),
        verbose: false,
    };
    Ok(rig.images().image_status(request).await?.into_inner().image)
}

/// The runtimes that received calls of an RPC since [`forget`].
pub fn asked<'a>(rig: &'a Rig, rpc: &str) -> Vec<&'a str> {
    let asked = rig.sims.iter().filter(|sim| !sim.calls(rpc).is_empty());
    asked.map(Sim::name).collect()
}

/// Clears the record of calls.
pub fn forget(rig: &Rig) {
    rig.sims.iter().for_each(Sim::forget_calls);
}
