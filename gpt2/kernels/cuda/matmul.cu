#include <algorithm>

#include "gpt2/kernels/cuda/column_sums.hpp"
#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"

namespace rankwise {

namespace {

/// A factor or a result as an operand for cuBLAS.
Operand operand(const Matrix& matrix)
{
  const bool by_rows = matrix.column_stride == 1;
  check(by_rows || matrix.row_stride == 1, "a factor of a matrix product is stored neither by rows nor by columns");
  const std::int64_t stride =
      by_rows ? std::max(matrix.row_stride, matrix.columns) : std::max(matrix.column_stride, matrix.rows);
  return {matrix.data.raw(), matrix.data.type(), std::max<std::int64_t>(stride, 1), by_rows};
}

/// A product without an epilogue; Error when the shapes do not match.
Product product_of(const Matrix& out, const Matrix& a, const Matrix& b)
{
  check(out.rows == a.rows && out.columns == b.columns && a.columns == b.rows,
        "the shapes of the three matrices do not match");
  check(out.column_stride == 1, "the rows of a matrix product are not contiguous");
  check(a.data.type() == b.data.type() && (out.data.type() == a.data.type() || out.data.type() == DType::f32),
        "the types of the three matrices do not match");
  return {.m = out.rows, .n = out.columns, .k = a.columns, .out = operand(out), .a = operand(a), .b = operand(b)};
}

/// out += bias in each row, or out = bias. Thread: 16 bytes of a row. Reads and writes out, (m, n).
/// @param bias  null for zeros.
template <class To, class From>
void add_bias(cudaStream_t stream, To* out, std::int64_t row_stride, const From* bias, std::int64_t m,
              std::int64_t n, bool add)
{
  constexpr int N = pack_size<To>;
  for_each_pack<N>(stream, m, n, [=] __device__(const PackPlace& at) {
    To* const to = out + at.row * row_stride + at.channel;
    Pack<N> sum = add ? load_pack<N>(to, at.count) : Pack<N>{};
    if (bias != nullptr) sum += load_pack<N>(bias + at.channel, at.count);
    store_pack(to, sum, at.count);
  });
}

/// Calls add_bias() for tensors; @p bias may be empty.
void add_bias(cudaStream_t stream, const Matrix& out, const Tensor& bias, bool add)
{
  with_gpu_type(out.data.type(), [&]<class To>(To) {
    with_gpu_type(bias.type(), [&]<class From>(From) {
      add_bias(stream, out.data.data<To>(), std::max(out.row_stride, out.columns),
               bias.empty() ? nullptr : bias.data<From>(), out.rows, out.columns, add);
    });
  });
}

}  // namespace

void CudaKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder&, const Tensor& bias,
                         bool accumulate) const
{
  Product product = product_of(out, a, b);
  if (out.rows == 0 || out.columns == 0) return;
  product.accumulate = accumulate;
  if (product.k == 0) {
    if (!accumulate || !bias.empty()) add_bias(on_, out, bias, accumulate);
    return;
  }
  if (!bias.empty() && bias.type() == out.data.type()) {
    Product with_bias = product;
    with_bias.epilogue = Epilogue::bias;
    with_bias.bias = bias.raw();
    if (cublas_.multiply(with_bias)) return;
  }
  check(cublas_.multiply(product), "cuBLAS has no algorithm for a matrix product");
  if (!bias.empty()) add_bias(on_, out, bias, true);
}

void CudaKernels::matmul_gelu_forward(const Tensor& y, const Matrix& x, const Matrix& a, const Matrix& b,
                                      const SumOrder& order, const Tensor& bias) const
{
  Product product = product_of(x, a, b);
  product.epilogue = Epilogue::bias_gelu;
  product.bias = bias.raw();
  product.inner = x.data.raw();
  product.out.first = y.raw();
  if (fuses_gelu(product) && y.type() == x.data.type() && bias.type() == x.data.type() && cublas_.multiply(product))
    return;
  KernelFamily::matmul_gelu_forward(y, x, a, b, order, bias);
}

void CudaKernels::matmul_gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& b, const SumOrder& order,
                                       const Tensor& x) const
{
  Product product = product_of(dx, dy, b);
  product.epilogue = Epilogue::gelu_backward;
  product.inner = x.raw();
  if (fuses_gelu(product) && x.type() == dx.data.type() && cublas_.multiply(product)) return;
  KernelFamily::matmul_gelu_backward(dx, dy, b, order, x);
}

bool CudaKernels::fuses_gelu(const Product& product) const
{
  // In bf16 only: cuBLAS's tangent is less precise than f32. Its auxiliary operand and each of its rows have to be
  // aligned to 16 bytes.
  constexpr std::int64_t elements = 8;
  const auto address = reinterpret_cast<std::uintptr_t>(product.inner);
  return epilogues_pay_ && product.out.type == DType::bf16 && product.m > 0 && product.n > 0 && product.k > 0 &&
         product.out.stride % elements == 0 && address % 16 == 0;
}

void CudaKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder&) const
{
  // forward:   y[i, j] = x[i, j] + bias[j]
  // gradient:  dbias[j] += sum over i of dy[i, j]
  add_rows(on_, dbias, dy, scratch_.tensor());
}

}  // namespace rankwise
