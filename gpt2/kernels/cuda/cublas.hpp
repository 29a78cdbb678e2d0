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
/// Matrix products by cuBLASLt: the algorithm is chosen once for each kind of product; and what a product is followed by
/// before it is stored.

namespace rankwise {

/// Throws Error with cuBLAS's own name and text unless @p code is CUBLAS_STATUS_SUCCESS.
void check_cublas(cublasStatus_t code, std::string_view doing, SourceLocation where = SourceLocation::current());

/// How f32 factors of a matrix product are multiplied.
enum class Products : std::uint8_t {
  f32,   ///< as they are
  tf32,  ///< rounded to TF32, on tensor cores
};

/// What becomes of the sums of a product before they are rounded and stored, in the same kernel.
enum class Epilogue : std::uint8_t {
  none,           ///< nothing
  bias,           ///< + bias
  bias_gelu,      ///< + bias, which is stored as `inner`; then gelu
  gelu_backward,  ///< times the slope of gelu at `inner`
};

/// A factor or a result as cuBLAS takes it, for whom matrices lie in memory column by column: ours, by rows, are transposed
/// to it.
struct Operand {
  void* first = nullptr;    ///< element (0, 0)
  DType type = DType::f32;  ///< f32 or bf16
  std::int64_t stride = 0;  ///< elements from one row of ours, one column of cuBLAS's, to the next
  bool by_rows = true;      ///< whether ours lies in memory by rows; else by columns
};

/// out = a b or out += a b, (m, n) from (m, k) and (k, n), and what follows.
struct Product {
  std::int64_t m = 0;                  ///< rows of the result
  std::int64_t n = 0;                  ///< columns of the result
  std::int64_t k = 0;                  ///< terms of a sum
  Operand out{};                       ///< by rows; its type is that of a and b or f32
  Operand a{};                         ///< of the type of b
  Operand b{};                         ///< of the type of a
  bool accumulate = false;             ///< whether to add to out
  Epilogue epilogue = Epilogue::none;  ///< what follows
  void* bias = nullptr;                ///< (n) of the type of out
  void* inner = nullptr;               ///< (m, n) of the type and stride of out
};

/// cuBLASLt on one stream, with memory of ours. For one thread at a time.
class CublasLt {
 public:
  /// @param stream     behind the work of which it runs; outlives it.
  /// @param workspace  what it may use as scratch; outlives it.
  /// @param products   of f32.
  CublasLt(cudaStream_t stream, const Tensor& workspace, Products products);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// Puts @p product on the stream, if cuBLAS has an algorithm for it: sums in f32, rounded once.
  /// @return whether it has one. There should be one for every product without epilogue.
  /// @throws Error  when cuBLAS fails.
  bool multiply(const Product& product) const;

 private:
  struct Destroy {
    void operator()(cublasLtMatmulDesc_t description) const { cublasLtMatmulDescDestroy(description); }
    void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
    void operator()(cublasLtMatmulPreference_t preference) const { cublasLtMatmulPreferenceDestroy(preference); }
  };
  template <class T>
  using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy>;

  /// What an algorithm is chosen by: all of a product but its addresses, of which only the alignment counts.
  struct Kind {
    explicit Kind(const Product& product);
    std::int64_t m, n, k, out_stride, a_stride, b_stride;
    std::uint32_t out_alignment, a_alignment, b_alignment, bias_alignment, inner_alignment;
    DType out_type, factor_type;
    Epilogue epilogue;
    bool a_by_rows, b_by_rows, accumulate;
    auto operator<=>(const Kind&) const = default;
  };
  /// How products of one kind are made.
  struct Plan {
    Owned<cublasLtMatmulDesc_t> description;
    Owned<cublasLtMatrixLayout_t> left, right, result;  // cuBLAS's A, B and both C and D
    std::optional<cublasLtMatmulAlgo_t> algorithm;      // none: cuBLAS knows none
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
