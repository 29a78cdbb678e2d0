#include "common/cuda/element_sum.hpp"
#include "common/cuda/launch.hpp"
#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

template <class T>
__device__ T sum_of(T a, T b)
{
  return a + b;
}

__device__ bf16 sum_of(bf16 a, bf16 b)
{
  return bf16(static_cast<float>(a) + static_cast<float>(b));
}

/// Thread i adds elements i, i + thread_count(), ...; reads two vectors and writes one.
template <class T>
__global__ void add_elements(T* to, const T* from, std::int64_t n)
{
  for (std::int64_t i = thread_number(); i < n; i += thread_count()) to[i] = sum_of(to[i], from[i]);
}

}  // namespace

void add_on_gpu(cudaStream_t stream, const Tensor& to, const Tensor& from)
{
  with_summable_type(to.type(), [&](auto element) {
    using T = decltype(element);
    launch(grid_over(stream, to.elements()), add_elements<T>, to.data<T>(), from.data<T>(), to.elements());
  });
}

}  // namespace rankwise
