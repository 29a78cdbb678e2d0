#include "tests/emulated_cuda/streams.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace emulated_cuda {

namespace {

// Of all devices; never destroyed, because threads may outlive the main function.
std::vector<std::unique_ptr<CUstream_st>>& streams = *new std::vector<std::unique_ptr<CUstream_st>>;
CUstream_st* favourite = nullptr;  // whose work runs, mostly, until another is drawn

bool has_ended(const CUstream_st& stream)
{
  return stream.queue.empty();
}

/// Forgets streams that are destroyed and have nothing left to do.
void sweep()
{
  if (favourite != nullptr && favourite->destroyed) favourite = nullptr;
  std::erase_if(streams, [](const auto& stream) { return stream->destroyed && has_ended(*stream); });
}

/// Advances the first operation of a stream. @return  whether it has ended.
bool advance_head(CUstream_st& stream)
{
  Operation& operation = stream.queue.front();
  const bool lost = stream.device->error != cudaSuccess;
  if (!(lost && operation.needs_device) && !operation.advance()) return false;
  if (const Allocation* damaged = lost ? nullptr : stream.device->memory.damaged()) {
    stream.device->lose(cudaErrorIllegalAddress,
                        fmt::format("illegal address: {} wrote just before or behind an allocation of {} bytes",
                                    operation.name, damaged->bytes));
  }
  stream.queue.pop_front();
  return true;
}

/// Advances one stream that can be advanced. @return  false when there is none.
bool advance_any()
{
  if (favourite != nullptr && machine().random.below(4) != 0 && !has_ended(*favourite) && advance_head(*favourite))
    return true;
  std::vector<CUstream_st*> busy;
  for (const auto& stream : streams)
    if (!has_ended(*stream)) busy.push_back(stream.get());
  while (!busy.empty()) {
    const std::size_t k = machine().random.below(busy.size());
    favourite = busy[k];
    if (advance_head(*busy[k])) return true;
    busy[k] = busy.back();
    busy.pop_back();
  }
  favourite = nullptr;
  return false;
}

std::size_t queued()
{
  std::size_t count = 0;
  for (const auto& stream : streams) count += stream->queue.size();
  return count;
}

bool is_event(cudaEvent_t event)
{
  return event != nullptr;
}

}  // namespace

void enqueue(cudaStream_t stream, Operation operation)
{
  stream->queue.push_back(std::move(operation));
}

void run_until(const std::function<bool()>& done)
{
  while (!done())
    if (!advance_any()) wait_a_little();
  const std::size_t more = machine().random.below(2) == 0 ? 0 : machine().random.below(queued() + 1);
  for (std::size_t i = 0; i < more && advance_any(); ++i) continue;
}

void drain(const Device* device)
{
  run_until([device] {
    return std::all_of(streams.begin(), streams.end(), [device](const auto& stream) {
      return has_ended(*stream) || (device != nullptr && stream->device != device);
    });
  });
  sweep();
}

void run_what_can_run()
{
  while (advance_any()) continue;
}

void run_a_little()
{
  for (std::size_t i = machine().random.below(3) + 1; i > 0 && advance_any(); --i) continue;
}

bool is_stream(cudaStream_t stream, const char* name)
{
  if (stream == nullptr) say(std::string(name) + " on stream 0: the default stream is not used here");
  return std::any_of(streams.begin(), streams.end(),
                     [stream](const auto& known) { return known.get() == stream && !known->destroyed; });
}

}  // namespace emulated_cuda

// ---- CUDA's functions for streams and events ----------------------------------------------------------------------------

using namespace emulated_cuda;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned)
{
  return runtime_call("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation, [&] {
    sweep();
    streams.push_back(std::make_unique<CUstream_st>());
    *stream = streams.back().get();
    (*stream)->device = &current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  return runtime_call("cudaStreamDestroy", cudaErrorInvalidResourceHandle, [&] {
    if (!is_stream(stream, "cudaStreamDestroy")) return cudaErrorInvalidResourceHandle;
    stream->destroyed = true;
    sweep();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
  return runtime_call("cudaStreamSynchronize", cudaErrorUnknown, [&] {
    if (!is_stream(stream, "cudaStreamSynchronize")) return cudaErrorInvalidResourceHandle;
    run_until([stream] { return has_ended(*stream); });
    return stream->device->error;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
  return runtime_call("cudaStreamQuery", cudaErrorUnknown, [&] {
    if (!is_stream(stream, "cudaStreamQuery")) return cudaErrorInvalidResourceHandle;
    run_a_little();
    if (stream->device->error != cudaSuccess) return stream->device->error;
    return has_ended(*stream) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaDeviceSynchronize()
{
  return runtime_call("cudaDeviceSynchronize", cudaErrorUnknown, [&] {
    drain(&current_device());
    return current_device().error;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags)
{
  return runtime_call("cudaEventCreateWithFlags", cudaErrorMemoryAllocation, [&] {
    *event =
        new CUevent_st{&current_device(), (flags & cudaEventDisableTiming) == 0, std::make_shared<EventState>()};
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  return runtime_call("cudaEventDestroy", cudaErrorInvalidResourceHandle, [&] {
    if (!is_event(event)) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
  return runtime_call("cudaEventRecord", cudaErrorInvalidResourceHandle, [&] {
    if (!is_event(event) || !is_stream(stream, "cudaEventRecord") || event->device != stream->device)
      return cudaErrorInvalidResourceHandle;
    const std::uint64_t number = ++event->state->recorded;
    enqueue(stream, {"an event",
                     [state = event->state, number] {
                       state->happened = std::max(state->happened, number);
                       state->happened_at = std::chrono::steady_clock::now();
                       return true;
                     },
                     false});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
  return runtime_call("cudaStreamWaitEvent", cudaErrorInvalidResourceHandle, [&] {
    if (!is_event(event) || !is_stream(stream, "cudaStreamWaitEvent")) return cudaErrorInvalidResourceHandle;
    enqueue(stream,
            {"waiting for an event",
             [state = event->state, number = event->state->recorded] { return state->happened >= number; }, false});
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
  return runtime_call("cudaEventSynchronize", cudaErrorUnknown, [&] {
    if (!is_event(event)) return cudaErrorInvalidResourceHandle;
    const auto state = event->state;
    Device& device = *event->device;
    run_until([&, number = state->recorded] { return state->happened >= number || device.error != cudaSuccess; });
    return device.error;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
  return runtime_call("cudaEventQuery", cudaErrorUnknown, [&] {
    if (!is_event(event)) return cudaErrorInvalidResourceHandle;
    run_a_little();
    if (event->device->error != cudaSuccess) return event->device->error;
    return event->state->happened >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* time_ms, cudaEvent_t begin, cudaEvent_t end)
{
  return runtime_call("cudaEventElapsedTime", cudaErrorInvalidResourceHandle, [&] {
    for (const cudaEvent_t event : {begin, end}) {
      if (!is_event(event) || !event->timed || event->state->recorded == 0) return cudaErrorInvalidResourceHandle;
      if (event->state->happened < event->state->recorded) return cudaErrorNotReady;
    }
    const std::chrono::duration<float, std::milli> time = end->state->happened_at - begin->state->happened_at;
    *time_ms = time.count();
    return cudaSuccess;
  });
}
