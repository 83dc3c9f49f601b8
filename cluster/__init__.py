"""Where things run and whether they are well: the Ray session, resources, the engine pool, the learner group."""
