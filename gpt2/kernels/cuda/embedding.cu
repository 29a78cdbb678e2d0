#include <bit>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

namespace rankwise {

namespace {

/// Thread: 16 bytes of a row. Reads rows of wte, writes y: two tensors of (R, C).
template <class T>
void look_up(cudaStream_t stream, T* y, const T* wte, const std::int32_t* tokens, Range vocabulary, std::int64_t R,
             std::int64_t C)
{
  constexpr int N = pack_size<T>;
  for_each_pack<N>(stream, R, C, [=] __device__(const PackPlace& at) {
    const std::int64_t v = tokens[at.row] - vocabulary.first;
    const bool here = 0 <= v && v < vocabulary.count;
    store_pack(y + at.index, here ? load_pack<N>(wte + v * C + at.channel, at.count) : Pack<N>{}, at.count);
  });
}

}  // namespace

void CudaKernels::token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const
{
  const std::int64_t R = tokens.elements();
  with_gpu_type(y.type(), [&]<class T>(T) {
    look_up(on_, y.data<T>(), wte.data<T>(), tokens.data<std::int32_t>(), vocabulary, R, y.elements() / R);
  });
}

namespace {

/// Shared memory of a block of add_token_rows().
struct TokenList {
  static constexpr int capacity = 512;  // rows in the list

  float scratch[most_warps];
  unsigned hits[most_warps];  // for each warp, one bit for each thread that has found a row
  int rows[capacity];         // rows of the token, in order
};

/// Whether a row before @p r has the same token; the same answer in all threads of the block.
__device__ bool is_repeated(const std::int32_t* tokens, std::int64_t r, float* scratch)
{
  float found = 0;
  for (std::int64_t before = threadIdx.x; before < r; before += blockDim.x)
    if (tokens[before] == tokens[r]) found = 1;
  return block_reduce(found, Larger{}, scratch) > 0;
}

/// Appends the rows of [first, first + threads of the block) with token @p token to the list of @p count rows.
/// @return the new length of the list.
__device__ int append_rows(TokenList& list, int count, std::int32_t token, const std::int32_t* tokens,
                           std::int64_t first, std::int64_t R)
{
  const std::int64_t r = first + threadIdx.x;
  const unsigned warp = threadIdx.x / warp_threads, lane = threadIdx.x % warp_threads;
  const bool hit = r < R && tokens[r] == token;
  const unsigned hits = __ballot_sync(whole_warp, hit);
  if (lane == 0) list.hits[warp] = hits;
  __syncthreads();
  int place = count;
  for (unsigned w = 0; w < blockDim.x / warp_threads; ++w) {
    if (w == warp && hit) list.rows[place + std::popcount(hits & ((1U << lane) - 1))] = static_cast<int>(r);
    place += std::popcount(list.hits[w]);
  }
  __syncthreads();
  return place;
}

/// sums[c] += sum of the rows in the list. Thread: every (threads of the block)-th pack of channels.
template <class T>
__device__ void add_listed_rows(float* sums, const T* dx, const TokenList& list, int count, std::int64_t C)
{
  constexpr int N = pack_size<T>;
  for (std::int64_t c = N * threadIdx.x; c < C; c += N * blockDim.x) {
    Pack<N> sum{};
    for (int i = 0; i < count; ++i) sum += load_pack<N>(dx + list.rows[i] * C + c, C - c);
    for (int i = 0; i < N; ++i)
      if (c + i < C) sums[c + i] += sum.at[i];
  }
}

/// dwte[token] += sum of the rows of the token, in order.
///
/// Block r: row r. If no row before it has the same token, this block alone adds all rows of the token. It searches
/// for them 256 rows at a time, one row per thread; the sums, C f32, are in shared memory until all are added.
/// Reads dx, (R, C), and the tokens R times, from cache.
template <class To, class From>
__global__ void __launch_bounds__(block_threads)
    add_token_rows(To* dwte, const From* dx, const std::int32_t* tokens, Range vocabulary, std::int64_t R,
                   std::int64_t C)
{
  auto& list = shared_memory<TokenList>();
  float* const sums = reinterpret_cast<float*>(&list + 1);
  const std::int64_t r = blockIdx.x;
  const std::int32_t token = tokens[r];
  if (!vocabulary.contains(token) || is_repeated(tokens, r, list.scratch)) return;
  for (std::int64_t c = threadIdx.x; c < C; c += blockDim.x) sums[c] = 0;
  int count = 0;
  for (std::int64_t first = r; first < R; first += blockDim.x) {
    count = append_rows(list, count, token, tokens, first, R);
    const bool last = first + blockDim.x >= R, full = count + static_cast<int>(blockDim.x) > TokenList::capacity;
    if (!last && !full) continue;
    add_listed_rows(sums, dx, list, count, C);
    __syncthreads();
    count = 0;
  }
  To* const to = dwte + (token - vocabulary.first) * C;
  for (std::int64_t c = threadIdx.x; c < C; c += blockDim.x)
    to[c] = rounded_to<To>(static_cast<float>(to[c]) + sums[c]);
}

}  // namespace

void CudaKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                                 const SumOrder&) const
{
  // forward:   y[r] = wte[token[r]]
  // gradient:  dwte[v] += sum of dx[r] over the rows r whose token is v
  const std::int64_t R = tokens.elements(), C = dx.elements() / R;
  const std::int64_t shared_bytes = static_cast<std::int64_t>(sizeof(TokenList)) + C * bytes_of(DType::f32);
  with_gpu_type(dwte.type(), [&]<class To>(To) {
    with_gpu_type(dx.type(), [&]<class From>(From) {
      launch({on_, dim3(static_cast<unsigned>(R)), block_threads, shared_bytes}, add_token_rows<To, From>,
             dwte.data<To>(), dx.data<From>(), tokens.data<std::int32_t>(), vocabulary, R, C);
    });
  });
}

namespace {

/// Thread: 16 bytes of a row. Reads y and wpe, writes x: two tensors of (R, C) beside wpe, which stays in cache.
template <class T>
void add_positions(cudaStream_t stream, T* x, const T* y, const T* wpe, const Rows& rows, std::int64_t C,
                   const RowDropout& dropout)
{
  constexpr int N = pack_size<T>;
  const Range tokens = rows.tokens;
  for_each_pack<N>(stream, rows.count(), C, [=] __device__(const PackPlace& at) {
    Pack<N> sum = load_pack<N>(y + at.index, at.count);
    sum += load_pack<N>(wpe + (tokens.first + at.row % tokens.count) * C + at.channel, at.count);
    dropout.apply(sum, at);
    store_pack(x + at.index, sum, at.count);
  });
}

/// Thread: 16 bytes of a position, all sequences. Reads dx, (R, C).
template <class To, class From>
void add_sequences(cudaStream_t stream, To* dwpe, const From* dx, const Rows& rows, std::int64_t C)
{
  constexpr int N = pack_size<From>;
  const std::int64_t T = rows.tokens.count, B = rows.sequences.count, first = rows.tokens.first * C;
  for_each_pack<N>(stream, T, C, [=] __device__(const PackPlace& at) {
    Pack<N> sum{};
    for (std::int64_t b = 0; b < B; ++b) sum += load_pack<N>(dx + b * T * C + at.index, at.count);
    To* const to = dwpe + first + at.index;
    Pack<N> total = load_pack<N>(to, at.count);
    total += sum;
    store_pack(to, total, at.count);
  });
}

}  // namespace

void CudaKernels::position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                   const Dropout& dropout) const
{
  with_gpu_type(x.type(), [&]<class T>(T) {
    add_positions(on_, x.data<T>(), y.data<T>(), wpe.data<T>(), rows, x.elements() / rows.count(),
                  RowDropout(dropout));
  });
}

void CudaKernels::position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const
{
  // forward:   x[b, t] = y[b, t] + wpe[t]
  // gradient:  dwpe[t] += sum over b of dx[b, t]
  with_gpu_type(dwpe.type(), [&]<class To>(To) {
    with_gpu_type(dx.type(), [&]<class From>(From) {
      add_sequences(on_, dwpe.data<To>(), dx.data<From>(), rows, dx.elements() / rows.count());
    });
  });
}

}  // namespace rankwise
