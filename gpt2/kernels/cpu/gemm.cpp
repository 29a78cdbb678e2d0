#include "gpt2/kernels/cpu/gemm.hpp"

#ifdef RANKWISE_ONEDNN
#include <dnnl.h>
#else
#include <cblas.h>
#include <omp.h>
#endif

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

#ifdef RANKWISE_ONEDNN

void gemm(float* out, std::int64_t out_stride, GemmOperand<float> a, GemmOperand<float> b, std::int64_t m,
          std::int64_t n, std::int64_t k, bool accumulate)
{
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0F, a.first, a.stride, b.first,
                 b.stride, accumulate ? 1.0F : 0.0F, out, out_stride);
  check(status == dnnl_success, "oneDNN refused a matrix product");
}

std::string gemm_library()
{
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version.major, version.minor, version.patch);
}

#else

extern "C" void openblas_set_num_threads(int);
extern "C" const char* openblas_get_config();

std::string gemm_library()
{
  const std::string said = openblas_get_config();  // "OpenBLAS 0.3.21 DYNAMIC_ARCH ..."
  return said.substr(0, said.find(' ', said.find(' ') + 1));
}

void gemm(float* out, std::int64_t out_stride, GemmOperand<float> a, GemmOperand<float> b, std::int64_t m,
          std::int64_t n, std::int64_t k, bool accumulate)
{
  const auto size = [](std::int64_t x) { return static_cast<blasint>(x); };
  const auto order = [](const GemmOperand<float>& x) { return x.transposed ? CblasTrans : CblasNoTrans; };
  openblas_set_num_threads(omp_in_parallel() ? 1 : omp_get_max_threads());
  cblas_sgemm(CblasRowMajor, order(a), order(b), size(m), size(n), size(k), 1.0F, a.first, size(a.stride), b.first,
              size(b.stride), accumulate ? 1.0F : 0.0F, out, size(out_stride));
}

#endif

}  // namespace rankwise
