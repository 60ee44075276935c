#pragma once

// Limits the processor time of the templates that this thread computes while the object lives. Afterwards each of their
// steps fails.
class time_limit {
  public:
    explicit time_limit(double seconds);
    ~time_limit();
    time_limit(const time_limit &) = delete;
    time_limit & operator=(const time_limit &) = delete;
    bool is_exceeded() const; // whether a step has failed, even if llama.cpp then went on without its result
};
