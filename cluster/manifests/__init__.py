"""What other systems read to set up a cluster for a job: KubeRay's resources."""
