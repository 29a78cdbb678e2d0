#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "tests/emulated_cuda/machine.hpp"

/// @file
/// Streams: queues of work that runs in a random order, as far as streams and events leave it open.
///
/// Nothing runs when it is queued. When the host waits, heads of queues are taken at random until what it waits for has
/// happened, and then perhaps some more. So work that nothing orders runs in an order that a program cannot rely upon.

namespace emulated_cuda {

/// One piece of a stream's work.
struct Operation {
  std::string name;               ///< for messages
  std::function<bool()> advance;  ///< does it, or a part of it; whether it has ended. Called again until it has.
  bool needs_device = true;       ///< it is left out once the device is lost
};

/// State of an event; it outlives the event while work waits for it.
struct EventState {
  std::uint64_t recorded = 0;                         ///< times it was put into a stream
  std::uint64_t happened = 0;                         ///< the last of these that its stream has come to
  std::chrono::steady_clock::time_point happened_at;  ///< when that was
};

/// Puts work at the end of a stream.
void enqueue(cudaStream_t stream, Operation operation);

/// Runs work until @p done() is true, and then a random part of what else there is.
void run_until(const std::function<bool()>& done);

/// Runs all work of one device, or of all devices if @p device is null.
void drain(const Device* device);

/// Runs all work that can run without waiting for other ranks.
void run_what_can_run();

/// Runs a little of what there is, if anything can run.
void run_a_little();

/// Whether @p stream can be used for a call of @p name. Says so when it is the default stream.
bool is_stream(cudaStream_t stream, const char* name);

}  // namespace emulated_cuda

/// A stream.
struct CUstream_st {
  emulated_cuda::Device* device;               ///< whose work it is
  std::deque<emulated_cuda::Operation> queue;  ///< its work, the next one first
  bool destroyed = false;                      ///< it goes when the queue is empty
};

/// An event.
struct CUevent_st {
  emulated_cuda::Device* device;                     ///< in whose streams it can be recorded
  bool timed;                                        ///< whether it knows its time
  std::shared_ptr<emulated_cuda::EventState> state;  ///< what it knows
};
