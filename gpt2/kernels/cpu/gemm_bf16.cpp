#include <algorithm>
#include <compare>
#include <map>
#include <omp.h>
#include <unordered_map>
#include <vector>

#ifdef RANKWISE_ONEDNN
#include <dnnl.hpp>
#endif

#include "common/base/error.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"
#include "gpt2/kernels/cpu/gemm_amx.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

namespace {

/// A product of matrices, without their addresses.
struct Product {
  std::int64_t m, n, k;
  std::int64_t a_stride, b_stride, out_stride;
  bool a_transposed, b_transposed, accumulate, bias;
  DType out;
  int threads;

  friend auto operator<=>(const Product&, const Product&) = default;
};

#ifdef RANKWISE_ONEDNN

/// True if the library has bf16 instructions for this processor.
bool library_multiplies_bf16()
{
  static const bool does = [] {
    const int isa = dnnl_get_effective_cpu_isa(), bf16_isa = dnnl_cpu_isa_avx512_core_bf16;
    return (isa & bf16_isa) == bf16_isa;  // a bit set that includes the bits of smaller instruction sets
  }();
  return does;
}

/// A product prepared by oneDNN; the preparation takes longer than a product of small matrices.
class PreparedProduct {
 public:
  PreparedProduct(const Product& p, const dnnl::engine& engine)
  {
    using dnnl::memory;
    constexpr auto bf16_data = memory::data_type::bf16;
    const auto strides = [](std::int64_t stride, bool transposed) {
      return transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
    };
    const memory::desc a({p.m, p.k}, bf16_data, strides(p.a_stride, p.a_transposed));
    const memory::desc b({p.k, p.n}, bf16_data, strides(p.b_stride, p.b_transposed));
    const memory::desc out({p.m, p.n}, p.out == DType::bf16 ? bf16_data : memory::data_type::f32,
                           strides(p.out_stride, false));
    const memory::desc bias({1, p.n}, bf16_data, strides(p.n, false));
    dnnl::primitive_attr attributes;
    if (p.accumulate) {
      dnnl::post_ops then;
      then.append_sum(1);
      attributes.set_post_ops(then);
    }
#if DNNL_VERSION_MAJOR >= 3
    using Wanted = dnnl::matmul::primitive_desc;
    multiply_ =
        dnnl::matmul(p.bias ? Wanted(engine, a, b, bias, out, attributes) : Wanted(engine, a, b, out, attributes));
#else
    const auto wanted = p.bias ? dnnl::matmul::desc(a, b, bias, out) : dnnl::matmul::desc(a, b, out);
    multiply_ = dnnl::matmul({wanted, attributes, engine});
#endif
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine, nullptr)},
                  {DNNL_ARG_WEIGHTS, memory(b, engine, nullptr)},
                  {DNNL_ARG_DST, memory(out, engine, nullptr)}};
    if (p.bias) arguments_.emplace(DNNL_ARG_BIAS, memory(bias, engine, nullptr));
  }

  /// Multiplies the matrices at these addresses.
  void operator()(dnnl::stream& stream, const bf16* a, const bf16* b, const bf16* bias, void* out)
  {
    const auto place = [&](int argument, const void* at) {
      arguments_.at(argument).set_data_handle(const_cast<void*>(at));  // oneDNN writes to the destination only
    };
    place(DNNL_ARG_SRC, a);
    place(DNNL_ARG_WEIGHTS, b);
    if (bias != nullptr) place(DNNL_ARG_BIAS, bias);
    place(DNNL_ARG_DST, out);
    multiply_.execute(stream, arguments_);
  }

 private:
  dnnl::matmul multiply_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// Cache of the products that one thread has prepared.
class Library {
 public:
  /// Multiplies.
  void operator()(const Product& product, const bf16* a, const bf16* b, const bf16* bias, void* out)
  {
    constexpr std::size_t most = 1000;  // products; if shapes keep changing, the cache is cleared at this size
    auto found = prepared_.find(product);
    if (found == prepared_.end()) {
      if (prepared_.size() >= most) prepared_.clear();
      found = prepared_.emplace(product, PreparedProduct(product, engine_)).first;
    }
    found->second(stream_, a, b, bias, out);
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Product, PreparedProduct> prepared_;
};

/// True if the library computes this product correctly. oneDNN 3.7 reads a row that is stored as a column, and
/// writes a result that is one column of a wider matrix, as if there were no gaps between the numbers.
bool library_multiplies(const Product& p)
{
  const bool row_with_gaps = p.m == 1 && p.a_transposed && p.a_stride > 1,
             column_with_gaps = p.n == 1 && p.out_stride > 1;
  return library_multiplies_bf16() && !row_with_gaps && !column_with_gaps;
}

void multiply_by_library(const Product& product, const bf16* a, const bf16* b, const bf16* bias, void* out)
{
  thread_local Library library;
  try {
    library(product, a, b, bias, out);
  } catch (const dnnl::error& error) {
    throw Error(std::string("oneDNN refused a matrix product of bf16: ") + error.what());
  }
}

#else

/// Not all versions of OpenBLAS have bf16 products.
bool library_multiplies_bf16()
{
  return false;
}

bool library_multiplies(const Product&)
{
  return false;
}

void multiply_by_library(const Product&, const bf16*, const bf16*, const bf16*, void*)
{
  throw Error("the library has no matrix product of bf16");
}

#endif

// A thread widens blocks of the factors with these numbers of rows and columns: 0.9 MiB together with the sums.
constexpr std::int64_t row_block = 128, column_block_width = 256, term_block = 512;

/// Copies rows (first_row ...) and columns (first_column ...) of a stored factor, widened and without gaps.
GemmOperand<float> widened(float* to, const GemmOperand<bf16>& factor, Range rows, Range columns)
{
  const Range stored_rows = factor.transposed ? columns : rows, stored_columns = factor.transposed ? rows : columns;
  for (std::int64_t r = 0; r < stored_rows.count; ++r) {
    const bf16* const from = factor.first + (stored_rows.first + r) * factor.stride + stored_columns.first;
#pragma omp simd
    for (std::int64_t c = 0; c < stored_columns.count; ++c)
      to[r * stored_columns.count + c] = static_cast<float>(from[c]);
  }
  return {to, stored_columns.count, factor.transposed};
}

/// Computes one block of out; called by one thread.
template <class Out>
void multiply_block(const Product& p, Out* out, const GemmOperand<bf16>& a, const GemmOperand<bf16>& b,
                    const bf16* bias, Range rows, Range columns)
{
  thread_local std::vector<float> scratch(row_block * column_block_width +
                                          (row_block + column_block_width) * term_block);
  float *const sums = scratch.data(), *const wide_a = sums + row_block * column_block_width,
               *const wide_b = wide_a + row_block * term_block;
  for (std::int64_t first = 0; first < p.k; first += term_block) {
    const Range terms{first, std::min(term_block, p.k - first)};
    gemm(sums, columns.count, widened(wide_a, a, rows, terms), widened(wide_b, b, terms, columns), rows.count,
         columns.count, terms.count, first > 0);
  }
  for (std::int64_t r = 0; r < rows.count; ++r) {
    Out* const to = out + (rows.first + r) * p.out_stride + columns.first;
    const float* const sum = sums + r * columns.count;
    for (std::int64_t c = 0; c < columns.count; ++c) {
      const float shift = bias != nullptr ? static_cast<float>(bias[columns.first + c]) : 0;
      to[c] = narrow<Out>((p.accumulate ? static_cast<float>(to[c]) : 0) + (sum[c] + shift));
    }
  }
}

/// The product by the f32 product; blocks of out are divided among threads.
template <class Out>
void multiply_widened(const Product& p, Out* out, const GemmOperand<bf16>& a, const GemmOperand<bf16>& b,
                      const bf16* bias)
{
  const std::int64_t across = (p.n + column_block_width - 1) / column_block_width;
  const std::int64_t blocks = (p.m + row_block - 1) / row_block * across;
#pragma omp parallel for if (blocks > 1)
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t row = i / across * row_block, column = i % across * column_block_width;
    multiply_block(p, out, a, b, bias, {row, std::min(row_block, p.m - row)},
                   {column, std::min(column_block_width, p.n - column)});
  }
}

}  // namespace

std::string cpu_products(DType type)
{
  if (type != DType::bf16) return gemm_library();
  if (amx_multiplies_bf16()) return "tiles of AMX";
  return gemm_library() + (library_multiplies_bf16() ? "" : ", widened to f32");
}

template <class Out>
void gemm(Out* out, std::int64_t out_stride, GemmOperand<bf16> a, GemmOperand<bf16> b, std::int64_t m,
          std::int64_t n, std::int64_t k, bool accumulate, const bf16* bias)
{
  if (amx_multiplies_bf16()) return multiply_on_tiles(out, out_stride, a, b, m, n, k, accumulate, bias);
  const Product product{.m = m,
                        .n = n,
                        .k = k,
                        .a_stride = a.stride,
                        .b_stride = b.stride,
                        .out_stride = out_stride,
                        .a_transposed = a.transposed,
                        .b_transposed = b.transposed,
                        .accumulate = accumulate,
                        .bias = bias != nullptr,
                        .out = dtype_of<Out>(),
                        .threads = omp_in_parallel() ? 1 : omp_get_max_threads()};
  if (library_multiplies(product))
    multiply_by_library(product, a.first, b.first, bias, out);
  else
    multiply_widened(product, out, a, b, bias);
}

template void gemm(float*, std::int64_t, GemmOperand<bf16>, GemmOperand<bf16>, std::int64_t, std::int64_t,
                   std::int64_t, bool, const bf16*);
template void gemm(bf16*, std::int64_t, GemmOperand<bf16>, GemmOperand<bf16>, std::int64_t, std::int64_t,
                   std::int64_t, bool, const bf16*);

}  // namespace rankwise
