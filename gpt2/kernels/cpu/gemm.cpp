#include "gpt2/kernels/cpu/gemm.hpp"

#ifdef RANKWISE_ONEDNN
#include <dnnl.h>
#else
#include <cblas.h>
#include <omp.h>
#endif

#include "common/base/error.hpp"

namespace rankwise {

#ifdef RANKWISE_ONEDNN

void gemm(float* out, std::int64_t out_stride, GemmOperand<float> a, GemmOperand<float> b, std::int64_t m,
          std::int64_t n, std::int64_t k, float scale, bool accumulate)
{
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, scale, a.first, a.stride, b.first,
                 b.stride, accumulate ? 1.0F : 0.0F, out, out_stride);
  check(status == dnnl_success, "oneDNN refused a matrix product");
}

#else

extern "C" void openblas_set_num_threads(int);

void gemm(float* out, std::int64_t out_stride, GemmOperand<float> a, GemmOperand<float> b, std::int64_t m,
          std::int64_t n, std::int64_t k, float scale, bool accumulate)
{
  const auto size = [](std::int64_t x) { return static_cast<blasint>(x); };
  const auto order = [](const GemmOperand<float>& x) { return x.transposed ? CblasTrans : CblasNoTrans; };
  openblas_set_num_threads(omp_in_parallel() ? 1 : omp_get_max_threads());
  cblas_sgemm(CblasRowMajor, order(a), order(b), size(m), size(n), size(k), scale, a.first, size(a.stride), b.first,
              size(b.stride), accumulate ? 1.0F : 0.0F, out, size(out_stride));
}

#endif

}  // namespace rankwise
