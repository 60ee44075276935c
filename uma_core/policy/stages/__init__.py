"""One stage per file: `run(state, plan) -> plan`, and `seal` where a stage must see the finished plan."""
