#include <bit>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/fours.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

namespace rankwise {

namespace {

/// Thread: four channels of a row. Reads 4 R C bytes of wte and writes as many.
void look_up(cudaStream_t stream, float* y, const float* wte, const std::int32_t* tokens, Range vocabulary,
             std::int64_t R, std::int64_t C)
{
  for_each_four(stream, R, C, [=] __device__(const FourPlace& at) {
    const std::int64_t v = tokens[at.row] - vocabulary.first;
    const bool here = 0 <= v && v < vocabulary.count;
    store_four(y + at.index, here ? load_four(wte + v * C + at.channel, at.count) : Four{}, at.count);
  });
}

}  // namespace

void CudaKernels::token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const
{
  const std::int64_t R = tokens.elements();
  look_up(on_, y.data<float>(), wte.data<float>(), tokens.data<std::int32_t>(), vocabulary, R, y.elements() / R);
}

namespace {

/// What a block of add_token_rows() keeps.
struct TokenList {
  static constexpr int capacity = 1024;  // rows in the list

  float room[most_warps];
  unsigned hits[most_warps];  // of each warp, one bit for each thread that has found a row
  int rows[capacity];         // of the token, in order
};

/// Whether a row before @p r has the same token; the same answer in all threads of the block.
__device__ bool is_repeated(const std::int32_t* tokens, std::int64_t r, float* room)
{
  float found = 0;
  for (std::int64_t before = threadIdx.x; before < r; before += blockDim.x)
    if (tokens[before] == tokens[r]) found = 1;
  return block_reduce(found, Larger{}, room) > 0;
}

/// Appends to the list, of @p count rows, those of [first, first + threads of the block) that have token @p token.
/// @return how many are in the list then.
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

/// to[c] += the sum of the rows in the list. Thread: every (threads of the block)-th channel.
__device__ void add_listed_rows(float* to, const float* dx, const TokenList& list, int count, std::int64_t C)
{
  for (std::int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += dx[list.rows[i] * C + c];
    to[c] += sum;
  }
}

/// dwte[token] += the rows of the token, in their order.
///
/// Block r: row r, if no row before it has the same token; it then adds all rows of that token, no other block does. It
/// looks for them 256 at a time, a thread at each token. Reads 4 R C bytes of dx, and the tokens R times, from cache.
__global__ void __launch_bounds__(block_threads)
    add_token_rows(float* dwte, const float* dx, const std::int32_t* tokens, Range vocabulary, std::int64_t R,
                   std::int64_t C)
{
  auto& list = shared_memory<TokenList>();
  const std::int64_t r = blockIdx.x;
  const std::int32_t token = tokens[r];
  if (!vocabulary.contains(token) || is_repeated(tokens, r, list.room)) return;
  float* const to = dwte + (token - vocabulary.first) * C;
  int count = 0;
  for (std::int64_t first = r; first < R; first += blockDim.x) {
    count = append_rows(list, count, token, tokens, first, R);
    const bool last = first + blockDim.x >= R, full = count + static_cast<int>(blockDim.x) > TokenList::capacity;
    if (!last && !full) continue;
    add_listed_rows(to, dx, list, count, C);
    count = 0;
  }
}

}  // namespace

void CudaKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                                 const SumOrder&) const
{
  // y[r] = wte[token[r]]
  const std::int64_t R = tokens.elements(), C = dx.elements() / R;
  launch({on_, dim3(static_cast<unsigned>(R)), block_threads, sizeof(TokenList)}, add_token_rows,
         dwte.data<float>(), dx.data<float>(), tokens.data<std::int32_t>(), vocabulary, R, C);
}

namespace {

/// Thread: four channels of a row. Reads y and wpe, writes x: 8 R C bytes beside wpe, which stays in cache.
void add_positions(cudaStream_t stream, float* x, const float* y, const float* wpe, const Rows& rows,
                   std::int64_t C, const RowDropout& dropout)
{
  const Range tokens = rows.tokens;
  for_each_four(stream, rows.count(), C, [=] __device__(const FourPlace& at) {
    Four four = load_four(y + at.index, at.count);
    const Four position = load_four(wpe + (tokens.first + at.row % tokens.count) * C + at.channel, at.count);
    for (int i = 0; i < 4; ++i) four.at[i] += position.at[i];
    dropout.apply(four, at);
    store_four(x + at.index, four, at.count);
  });
}

/// Thread: four channels of a position, all sequences. Reads 4 R C bytes.
void add_sequences(cudaStream_t stream, float* dwpe, const float* dx, const Rows& rows, std::int64_t C)
{
  const std::int64_t T = rows.tokens.count, B = rows.sequences.count, first = rows.tokens.first * C;
  for_each_four(stream, T, C, [=] __device__(const FourPlace& at) {
    Four sum{};
    for (std::int64_t b = 0; b < B; ++b) {
      const Four term = load_four(dx + b * T * C + at.index, at.count);
      for (int i = 0; i < 4; ++i) sum.at[i] += term.at[i];
    }
    float* const to = dwpe + first + at.index;
    Four total = load_four(to, at.count);
    for (int i = 0; i < 4; ++i) total.at[i] += sum.at[i];
    store_four(to, total, at.count);
  });
}

}  // namespace

void CudaKernels::position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                   const Dropout& dropout) const
{
  add_positions(on_, x.data<float>(), y.data<float>(), wpe.data<float>(), rows, x.elements() / rows.count(),
                RowDropout(dropout));
}

void CudaKernels::position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const
{
  // x[b, t] = y[b, t] + wpe[t]
  add_sequences(on_, dwpe.data<float>(), dx.data<float>(), rows, dx.elements() / rows.count());
}

}  // namespace rankwise
