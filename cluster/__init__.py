"""Where actors run and whether they are healthy: the Ray session, resources, the engine pool, the learner group."""
