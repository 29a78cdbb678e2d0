#pragma once

#include <compare>
#include <cstdint>
#include <cublasLt.h>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>

#include "common/base/source_location.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// Matrix products by cuBLASLt, with fused epilogues; the algorithm is chosen once for each kind of product.

namespace rankwise {

/// Throws Error with cuBLAS's own name and text unless @p code is CUBLAS_STATUS_SUCCESS.
void check_cublas(cublasStatus_t code, std::string_view doing, SourceLocation where = SourceLocation::current());

/// Precision in which f32 factors of a matrix product are multiplied.
enum class Products : std::uint8_t {
  f32,   ///< in f32
  tf32,  ///< rounded to TF32, on tensor cores
};

/// Operation on the sums of a product before they are rounded and stored, in the same kernel.
enum class Epilogue : std::uint8_t {
  none,           ///< nothing
  bias,           ///< + bias
  bias_gelu,      ///< + bias, stored as `inner`; then GELU
  gelu_backward,  ///< times the slope of GELU at `inner`
};

/// A factor or a result for cuBLAS. cuBLAS stores matrices
/// by columns, so it sees our row-major matrices transposed.
struct Operand {
  void* first = nullptr;    ///< element (0, 0)
  DType type = DType::f32;  ///< f32 or bf16
  std::int64_t stride = 0;  ///< elements from one row of our matrix (a column for cuBLAS) to the next
  bool by_rows = true;      ///< true if our matrix is stored by rows; else by columns
};

/// out = a b or out += a b, (m, n) from (m, k) and (k, n), with an epilogue.
struct Product {
  std::int64_t m = 0;                  ///< rows of the result
  std::int64_t n = 0;                  ///< columns of the result
  std::int64_t k = 0;                  ///< terms of a sum
  Operand out{};                       ///< stored by rows; has the type of a and b, or f32
  Operand a{};                         ///< has the type of b
  Operand b{};                         ///< has the type of a
  bool accumulate = false;             ///< true adds to out
  Epilogue epilogue = Epilogue::none;  ///< operation on the sums
  void* bias = nullptr;                ///< (n), type of out
  void* inner = nullptr;               ///< (m, n), type and stride of out
};

/// A descriptor of cuBLAS, with the function that destroys it.
template <class T>
using CublasDescriptor = std::shared_ptr<std::remove_pointer_t<T>>;

/// cuBLASLt on one stream, with workspace that the caller provides. For one thread at a time.
class CublasLt {
 public:
  /// @param stream     stream on which the products run; outlives this.
  /// @param workspace  scratch memory of cuBLAS; outlives this.
  /// @param products   precision of f32 products.
  CublasLt(cudaStream_t stream, const Tensor& workspace, Products products);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// Enqueues @p product on the stream, if cuBLAS has an algorithm for it: sums in f32, rounded once.
  /// @return  true if it has one; there should be one for every product without an epilogue.
  /// @throws Error  when cuBLAS fails.
  bool multiply(const Product& product) const;

 private:
  /// Key by which an algorithm is chosen: all properties of a product except its addresses, of which only the
  /// alignment matters.
  struct Kind {
    explicit Kind(const Product& product);
    std::int64_t m, n, k, out_stride, a_stride, b_stride;
    std::uint32_t out_alignment, a_alignment, b_alignment, bias_alignment, inner_alignment;
    DType out_type, factor_type;
    Epilogue epilogue;
    bool a_by_rows, b_by_rows, accumulate;
    auto operator<=>(const Kind&) const = default;
  };
  /// cuBLAS's descriptors and algorithm for one kind of product.
  struct Plan {
    CublasDescriptor<cublasLtMatmulDesc_t> description;
    CublasDescriptor<cublasLtMatrixLayout_t> left, right, result;  // cuBLAS's A, B and both C and D
    std::optional<cublasLtMatmulAlgo_t> algorithm;                 // empty: cuBLAS has none
  };

  Plan make_plan(const Product& product) const;
  std::optional<cublasLtMatmulAlgo_t> choose(const Plan& plan, const Kind& kind) const;

  cudaStream_t stream_;
  Tensor workspace_;
  Products products_;
  cublasLtHandle_t handle_ = nullptr;
  mutable std::map<Kind, Plan> plans_;
};

}  // namespace rankwise
