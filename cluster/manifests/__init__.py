"""Manifests with which other systems set up a cluster for a job: KubeRay's resources."""
