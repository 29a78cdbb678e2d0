#pragma once

#include <cuda_runtime.h>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/emulated_cuda/memory.hpp"

/// @file
/// The emulated machine: its devices, the lock that all calls take, errors, and faults that are asked for.

namespace emulated_cuda {

/// Numbers that depend on nothing but the seed (EMULATED_CUDA_SEED and the rank). Used under the machine's lock.
class Random {
 public:
  /// The numbers of one seed.
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// A number of 0 ... n-1, 0 < n < 2^32.
  std::size_t below(std::size_t n);

 private:
  std::uint64_t state_;
};

/// One device.
struct Device {
  int number;                       ///< from 0
  DeviceMemory memory;              ///< its memory
  cudaError_t error = cudaSuccess;  ///< once a kernel has failed the device is lost

  /// Loses the device and says why on standard error.
  void lose(cudaError_t code, const std::string& why);
};

/// All there is.
struct Machine {
  std::mutex mutex;                              ///< taken by every call from outside; see Turn
  std::uint64_t turns = 0;                       ///< times that it was
  std::vector<std::unique_ptr<Device>> devices;  ///< by number
  PinnedMemory pinned;                           ///< of the host
  Random random;                                 ///< what is drawn, anywhere
  int driver_version;                            ///< as cudaDriverGetVersion gives it

  /// The machine that the environment describes.
  Machine();
};

/// The machine of this process.
Machine& machine();

/// The time in which one host thread has the machine for itself: from the beginning of a call to its end.
class Turn {
 public:
  Turn() : lock_(machine().mutex) { ++machine().turns; }
  ~Turn() { close_device_memory(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Releases the machine's lock while @p work runs, which uses nothing of the machine.
  template <class Work>
  static void without(Work work)
  {
    close_device_memory();
    machine().mutex.unlock();
    work();
    machine().mutex.lock();
  }

 private:
  std::lock_guard<std::mutex> lock_;
};

/// The version of CUDA that is emulated: 13.0.
constexpr int runtime_version = 13000;
/// Most shared memory of a block, bytes: for kernels that do not ask, and for those that do.
constexpr std::size_t shared_memory_default = 48 << 10;
constexpr std::size_t shared_memory_limit = 227 << 10;

/// This host thread's device, which must exist.
Device& current_device();
/// The number of the device that this host thread has chosen.
int& current_device_number();

/// This process's rank in its job; 0 without a launcher.
int rank_of_process();

/// An integer of the environment, or @p otherwise.
long long environment_number(const char* name, long long otherwise);

/// One line on standard error.
void say(const std::string& text);

/// Whether this call of an API function is the one that EMULATED_CUDA_FAULT=NAME[:COUNT[:RANK]] makes fail.
bool fault_due(std::string_view name);

/// Yields to other host threads and ranks for a moment.
void wait_a_little();

/// Remembers a call's error for cudaGetLastError.
cudaError_t remember(cudaError_t code);

/// Whether there are devices that can be used; else every call's answer.
cudaError_t usable();

/// One call of the runtime that a lost device does not hinder, from taking the lock to remembering what came out.
/// @param name     of the API function.
/// @param failure  what it says when it is asked to fail.
/// @param body     what it does; gives the call's answer.
template <class Body>
cudaError_t machine_call(const char* name, cudaError_t failure, Body body)
{
  const Turn turn;
  if (const cudaError_t code = usable(); code != cudaSuccess) return remember(code);
  return remember(fault_due(name) ? failure : body());
}

/// One call of the runtime that needs the current device.
template <class Body>
cudaError_t runtime_call(const char* name, cudaError_t failure, Body body)
{
  return machine_call(name, failure,
                      [&] { return current_device().error != cudaSuccess ? current_device().error : body(); });
}

}  // namespace emulated_cuda
