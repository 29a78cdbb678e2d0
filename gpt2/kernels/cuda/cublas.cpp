#include "gpt2/kernels/cuda/cublas.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/late_binding.hpp"
#include "gpt2/kernels/kernels.hpp"

#define CUBLAS(function) RANKWISE_LATE(RANKWISE_CUBLAS_LIBRARY, function)

namespace rankwise {

namespace {

/// cuBLAS's name of an operand's type.
cudaDataType_t data_type(DType type)
{
  check(type == DType::f32 || type == DType::bf16, "matrix products of a GPU take tensors of f32 and bf16 only");
  return type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

/// The largest power of two, at most 256, that divides an address.
std::uint32_t alignment_of(const void* address)
{
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  return bits == 0 ? 256 : static_cast<std::uint32_t>(std::min<std::uintptr_t>(256, bits & -bits));
}

cublasLtEpilogue_t cublas_epilogue(Epilogue epilogue)
{
  switch (epilogue) {
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::bias_gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_backward:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::none:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t name, const T& value)
{
  check_cublas(CUBLAS(cublasLtMatmulDescSetAttribute)(description, name, &value, sizeof value),
               "describing a product");
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name, const T& value)
{
  check_cublas(CUBLAS(cublasLtMatmulPreferenceSetAttribute)(preference, name, &value, sizeof value),
               "saying what an algorithm may rely on");
}

/// The layout of a factor or result as cuBLAS sees it, by columns.
CublasDescriptor<cublasLtMatrixLayout_t> make_layout(const Operand& operand, std::int64_t rows,
                                                     std::int64_t columns)
{
  if (!operand.by_rows) std::swap(rows, columns);
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(
      CUBLAS(cublasLtMatrixLayoutCreate)(&layout, data_type(operand.type), static_cast<std::uint64_t>(columns),
                                         static_cast<std::uint64_t>(rows), operand.stride),
      "describing a matrix");
  return {layout, CUBLAS(cublasLtMatrixLayoutDestroy)};
}

/// Sets the addresses of an epilogue, which are not part of a plan.
void set_addresses(cublasLtMatmulDesc_t description, const Product& product)
{
  if (product.bias != nullptr) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (product.inner != nullptr) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.inner);
}

}  // namespace

void check_cublas(cublasStatus_t code, std::string_view doing, SourceLocation where)
{
  if (code != CUBLAS_STATUS_SUCCESS)
    throw Error(fmt::format("cuBLAS failed at {}: {}, {}", doing, CUBLAS(cublasLtGetStatusName)(code),
                            CUBLAS(cublasLtGetStatusString)(code)),
                where);
}

CublasLt::CublasLt(cudaStream_t stream, const Tensor& workspace, Products products)
    : stream_(stream), workspace_(workspace), products_(products)
{
  check_cublas(CUBLAS(cublasLtCreate)(&handle_), "starting cuBLAS");
}

CublasLt::~CublasLt()
{
  CUBLAS(cublasLtDestroy)(handle_);
}

CublasLt::Kind::Kind(const Product& product)
    : m(product.m),
      n(product.n),
      k(product.k),
      out_stride(product.out.stride),
      a_stride(product.a.stride),
      b_stride(product.b.stride),
      out_alignment(alignment_of(product.out.first)),
      a_alignment(alignment_of(product.a.first)),
      b_alignment(alignment_of(product.b.first)),
      bias_alignment(alignment_of(product.bias)),
      inner_alignment(alignment_of(product.inner)),
      out_type(product.out.type),
      factor_type(product.a.type),
      epilogue(product.epilogue),
      a_by_rows(product.a.by_rows),
      b_by_rows(product.b.by_rows),
      accumulate(product.accumulate)
{
}

CublasLt::Plan CublasLt::make_plan(const Product& product) const
{
  // cuBLAS sees each row-major matrix transposed, so it is asked for out' = b' a'.
  const bool rounds = products_ == Products::tf32 && product.a.type == DType::f32;
  cublasLtMatmulDesc_t description = nullptr;
  check_cublas(CUBLAS(cublasLtMatmulDescCreate)(
                   &description, rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "describing a product");
  Plan plan{{description, CUBLAS(cublasLtMatmulDescDestroy)},
            make_layout(product.b, product.k, product.n),
            make_layout(product.a, product.m, product.k),
            make_layout(product.out, product.m, product.n),
            std::nullopt};
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, product.b.by_rows ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, product.a.by_rows ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, cublas_epilogue(product.epilogue));
  if (product.inner != nullptr) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.out.stride);
  set_addresses(description, product);  // the choice depends on their alignment
  plan.algorithm = choose(plan, Kind(product));
  return plan;
}

std::optional<cublasLtMatmulAlgo_t> CublasLt::choose(const Plan& plan, const Kind& kind) const
{
  cublasLtMatmulPreference_t made = nullptr;
  check_cublas(CUBLAS(cublasLtMatmulPreferenceCreate)(&made), "saying what an algorithm may rely on");
  const CublasDescriptor<cublasLtMatmulPreference_t> preference(made, CUBLAS(cublasLtMatmulPreferenceDestroy));
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::size_t>(workspace_.bytes()));
  // Partial sums of a split contraction are added in f32, not in the type of the result.
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kind.b_alignment);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kind.a_alignment);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kind.out_alignment);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kind.out_alignment);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      CUBLAS(cublasLtMatmulAlgoGetHeuristic)(handle_, plan.description.get(), plan.left.get(), plan.right.get(),
                                             plan.result.get(), plan.result.get(), made, 1, &best, &found);
  const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0);
  if (none) return std::nullopt;
  check_cublas(status, "choosing an algorithm");
  check_cublas(best.state, "choosing an algorithm");
  return best.algo;
}

bool CublasLt::multiply(const Product& product) const
{
  const Kind kind(product);
  auto known = plans_.find(kind);
  if (known == plans_.end()) known = plans_.emplace(kind, make_plan(product)).first;
  const Plan& plan = known->second;
  if (!plan.algorithm) return false;
  set_addresses(plan.description.get(), product);
  const float one = 1, kept = product.accumulate ? 1 : 0;
  check_cublas(CUBLAS(cublasLtMatmul)(handle_, plan.description.get(), &one, product.b.first, plan.left.get(),
                                      product.a.first, plan.right.get(), &kept, product.out.first,
                                      plan.result.get(), product.out.first, plan.result.get(), &*plan.algorithm,
                                      workspace_.raw(), static_cast<std::size_t>(workspace_.bytes()), stream_),
               "multiplying matrices");
  return true;
}

std::string cuda_products()
{
  const std::size_t version = CUBLAS(cublasLtGetVersion)();
  return fmt::format("cuBLAS {}.{}", version / 10000, version / 100 % 100);
}

}  // namespace rankwise
