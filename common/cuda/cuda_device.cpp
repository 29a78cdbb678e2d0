#include "common/cuda/cuda_device.hpp"

#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/cuda/element_sum.hpp"
#include "common/program/session.hpp"

namespace rankwise {

void check_cuda(cudaError_t code, std::string_view doing, SourceLocation where)
{
  if (code == cudaSuccess) return;
  throw Error(fmt::format("CUDA failed at {}: {}, {}", doing, cudaGetErrorName(code), cudaGetErrorString(code)),
              where);
}

cudaStream_t cuda_stream(Stream& stream)
{
  auto* const gpu = dynamic_cast<CudaStream*>(&stream);
  check(gpu != nullptr, "a GPU stream was expected");
  return gpu->handle();
}

namespace {

/// Number of GPUs visible to this process.
int gpu_count()
{
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "counting the GPUs");
  check(count > 0, "there is no GPU");
  return count;
}

/// CUDA's version number as text: "13.0" for 13000.
std::string version(int number)
{
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

/// Pinned host memory, which GPUs access by DMA: its pages cannot be moved.
class PinnedMemory final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "pinned host memory"; }
  void* allocate(std::int64_t bytes) override
  {
    void* memory = nullptr;
    check_cuda(
        cudaHostAlloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), cudaHostAllocDefault),
        fmt::format("allocating {} bytes of pinned memory", group_digits(bytes)));
    if (poisons_memory) std::memset(memory, 0xFF, static_cast<std::size_t>(bytes));
    return memory;
  }
  void release(void* memory, std::int64_t) noexcept override { cudaFreeHost(memory); }
  std::unique_ptr<Stream> make_stream() override { return make_cpu_device()->make_stream(); }
};

}  // namespace

// ---- Device ---------------------------------------------------------------------------------------------------------

CudaDevice::CudaDevice() : number_(rank_on_machine() % gpu_count()), host_memory_(std::make_unique<PinnedMemory>())
{
  check_cuda(cudaSetDevice(number_), "choosing a GPU");
  name_ = gpu_facts().name;
}

CudaDevice::~CudaDevice() = default;

void* CudaDevice::allocate(std::int64_t bytes)
{
  void* memory = nullptr;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  const cudaError_t code = cudaMalloc(&memory, size);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which is reported below
    throw Error(fmt::format("out of device memory: GPU {} cannot provide {} bytes, {} are free", number_,
                            group_digits(bytes), group_digits(gpu_facts().free_bytes)));
  }
  check_cuda(code, "allocating GPU memory");
  if (poisons_memory) {
    const std::unique_ptr<Stream> stream = make_stream();
    check_cuda(cudaMemsetAsync(memory, 0xFF, size, cuda_stream(*stream)), "filling GPU memory");
    stream->synchronise();
  }
  return memory;
}

void CudaDevice::release(void* memory, std::int64_t) noexcept
{
  cudaFree(memory);  // errors of earlier work have been reported by synchronise()
}

std::unique_ptr<Stream> CudaDevice::make_stream()
{
  return std::make_unique<CudaStream>(number_);
}

std::unique_ptr<Device> make_cuda_device()
{
  return std::make_unique<CudaDevice>();
}

GpuFacts gpu_facts()
{
  GpuFacts facts{.name = {}, .count = gpu_count()};
  facts.number = rank_on_machine() % facts.count;
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, facts.number), "querying a GPU's properties");
  facts.name = properties.name;
  check_cuda(cudaSetDevice(facts.number), "choosing a GPU");
  std::size_t available = 0, all = 0;
  check_cuda(cudaMemGetInfo(&available, &all), "querying GPU memory");
  facts.memory_bytes = static_cast<std::int64_t>(all);
  facts.free_bytes = static_cast<std::int64_t>(available);
  return facts;
}

void check_device(DeviceKind kind)
{
  if (kind != DeviceKind::cuda) return;
  int driver = 0, built = 0, count = 0;
  check_cuda(cudaRuntimeGetVersion(&built), "querying the CUDA version");
  const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  const cudaError_t code = has_driver ? cudaGetDeviceCount(&count) : cudaErrorNoDevice;
  if (code == cudaErrorInsufficientDriver)
    throw UserError(fmt::format("--device=cuda, but the GPU's driver knows CUDA {} and this build is for CUDA {}.",
                                version(driver), version(built)),
                    "Install a newer driver, build with an older CUDA, or use --device=cpu.");
  if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0))
    throw UserError(fmt::format("--device=cuda, but this machine has no {}.", has_driver ? "GPU" : "GPU driver"),
                    "nvidia-smi shows the GPUs that CUDA sees; CUDA_VISIBLE_DEVICES hides some. Use --device=cpu "
                    "without one.");
  if (code != cudaSuccess)
    throw UserError(fmt::format("--device=cuda, but the GPU cannot be used: {}, {}.", cudaGetErrorName(code),
                                cudaGetErrorString(code)),
                    "Check the output of nvidia-smi, or use --device=cpu.");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, rank_on_machine() % count), "querying a GPU's properties");
  constexpr int oldest = 8;  // oldest compute capability for which kernels are built
  if (properties.major < oldest)
    throw UserError(fmt::format("--device=cuda, but {} has compute capability {}.{}.", properties.name,
                                properties.major, properties.minor),
                    "The kernels are built for 8.0 (A100) and newer. Use --device=cpu.");
}

void begin_gpu_range(const char* name)
{
  nvtxRangePushA(name);
}

void end_gpu_range()
{
  nvtxRangePop();
}

// ---- Stream ---------------------------------------------------------------------------------------------------------

CudaStream::CudaStream(int number) : number_(number)
{
  check_cuda(cudaSetDevice(number_), "choosing a GPU");
  check_cuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "creating a stream");
}

CudaStream::~CudaStream()
{
  cudaStreamDestroy(handle_);
}

cudaStream_t CudaStream::handle()
{
  check_cuda(cudaSetDevice(number_), "choosing a GPU");
  return handle_;
}

void CudaStream::zero(const Tensor& to)
{
  if (to.bytes() == 0) return;
  check_cuda(cudaMemsetAsync(to.raw(), 0, static_cast<std::size_t>(to.bytes()), handle()), "setting to zero");
}

void CudaStream::copy(const Tensor& to, const Tensor& from)
{
  check(to.type() == from.type() && to.elements() == from.elements(),
        "a copy between tensors of different type or size");
  if (to.bytes() == 0) return;
  check_cuda(
      cudaMemcpyAsync(to.raw(), from.raw(), static_cast<std::size_t>(to.bytes()), cudaMemcpyDefault, handle()),
      "copying");
}

void CudaStream::add(const Tensor& to, const Tensor& from)
{
  check(to.type() == from.type() && to.elements() == from.elements(), "a sum of tensors of different type or size");
  if (to.bytes() > 0) add_on_gpu(handle(), to, from);
}

void CudaStream::synchronise()
{
  check_cuda(cudaStreamSynchronize(handle()), "waiting for a stream");
}

Event CudaStream::record()
{
  const cudaStream_t stream = handle();
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  Event recorded(
      std::shared_ptr<void>(event, [](void* made) { cudaEventDestroy(static_cast<cudaEvent_t>(made)); }));
  check_cuda(cudaEventRecord(event, stream), "recording an event");
  return recorded;
}

void CudaStream::wait(const Event& event)
{
  if (event.handle() == nullptr) return;
  check_cuda(cudaStreamWaitEvent(handle(), static_cast<cudaEvent_t>(event.handle()), 0), "waiting for an event");
}

}  // namespace rankwise
