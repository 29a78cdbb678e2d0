#include <algorithm>
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

/// Rows whose tokens are those of a block of add_token_rows(), in order, in its shared memory.
struct TokenList {
  static constexpr int words = warp_threads;             // one bit for each row that is searched at once
  static constexpr int searched = words * warp_threads;  // rows
  static constexpr int capacity = searched + searched / 2;
  static constexpr int warps = block_threads / warp_threads, rounds = words / warps;

  struct Entry {
    int row, number;  // number of the row's token among the tokens of the block
  };
  unsigned hits[2][words];
  alignas(16) Entry at[capacity];
};

/// The tokens of the rows that a thread searches among the next TokenList::searched rows; -1 behind the last row.
struct SearchedTokens {
  std::int32_t at[TokenList::rounds];

  __device__ SearchedTokens(const std::int32_t* tokens, std::int64_t first, std::int64_t R)
  {
    for (int round = 0; round < TokenList::rounds; ++round) {
      const std::int64_t r = first + round * block_threads + threadIdx.x;
      at[round] = r < R ? tokens[r] : -1;
    }
  }
};

/// Appends the rows from @p first on whose tokens are among the @p own ones to the list of @p count rows. Successive calls use
/// the two sets of words in turn, so that one barrier is enough.
/// @return the new length of the list.
__device__ int append_rows(TokenList& list, int count, Range own, const SearchedTokens& tokens, std::int64_t first)
{
  const int warp = static_cast<int>(threadIdx.x) / warp_threads,
            lane = static_cast<int>(threadIdx.x) % warp_threads;
  unsigned* const hits = list.hits[first / TokenList::searched % 2];
  for (int round = 0; round < TokenList::rounds; ++round) {
    const unsigned found = __ballot_sync(whole_warp, own.contains(tokens.at[round]));
    if (lane == 0) hits[round * TokenList::warps + warp] = found;
  }
  __syncthreads();
  if (__ballot_sync(whole_warp, hits[lane] != 0) == 0) return count;
  for (int round = 0; round < TokenList::rounds; ++round)
    for (int w = 0; w < TokenList::warps; ++w) {
      const int word = round * TokenList::warps + w;
      const unsigned found = hits[word], before = found & ((1U << lane) - 1);
      if (w == warp && (found >> lane & 1) != 0)
        list.at[count + std::popcount(before)] = {static_cast<int>(first) + word * warp_threads + lane,
                                                  static_cast<int>(tokens.at[round] - own.first)};
      count += std::popcount(found);
    }
  return count;
}

/// Division of work among the threads of a block: `groups` groups of threads, each with one pack of channels a
/// thread, add every (groups)-th row of the list to sums of their own, (groups, tokens, packs).
struct TokenSums {
  int groups, tokens, packs;
};

/// Adds the rows in the list to the sums.
template <class T>
__device__ void add_listed_rows(Pack<pack_size<T>>* sums, const T* dx, const TokenList& list, int count,
                                const TokenSums& of, std::int64_t C)
{
  constexpr int N = pack_size<T>, together = 4;  // rows whose loads do not wait for each other
  const int threads = static_cast<int>(blockDim.x) / of.groups, thread = static_cast<int>(threadIdx.x) % threads;
  const int group = static_cast<int>(threadIdx.x) / threads;
  if (group >= of.groups) return;
  for (int p = thread; p < of.packs; p += threads)
    for (int i = group; i < count; i += together * of.groups) {
      Pack<N> rows[together];
      for (int k = 0; k < together; ++k)
        if (i + k * of.groups < count)
          rows[k] = load_pack<N>(dx + list.at[i + k * of.groups].row * C + p * N, C - p * N);
      for (int k = 0; k < together; ++k)
        if (i + k * of.groups < count)
          sums[(group * of.tokens + list.at[i + k * of.groups].number) * of.packs + p] += rows[k];
    }
}

/// dwte[token] += sum of the rows of the token.
///
/// Block i: tokens i n ... i n + n - 1 of the vocabulary for n = of.tokens. It searches all rows for them; the sums, in f32, are
/// in shared memory until all rows are added. Reads dx, (R, C), once, and the tokens from cache.
template <class To, class From>
__global__ void __launch_bounds__(block_threads)
    add_token_rows(To* dwte, const From* dx, const std::int32_t* tokens, Range vocabulary, TokenSums of,
                   std::int64_t R, std::int64_t C)
{
  constexpr int N = pack_size<From>;
  auto& list = shared_memory<TokenList>();
  auto* const sums = reinterpret_cast<Pack<N>*>(&list + 1);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * of.tokens;
  const Range own{vocabulary.first + begin, std::min<std::int64_t>(of.tokens, vocabulary.count - begin)};
  for (int i = static_cast<int>(threadIdx.x); i < of.groups * of.tokens * of.packs; i += block_threads)
    sums[i] = {};
  int count = 0;
  SearchedTokens next(tokens, 0, R);
  for (std::int64_t first = 0; first < R; first += TokenList::searched) {
    const SearchedTokens now = next;
    next = SearchedTokens(tokens, first + TokenList::searched, R);  // arrives while the block searches
    count = append_rows(list, count, own, now, first);
    if (first + TokenList::searched < R && count + TokenList::searched <= TokenList::capacity) continue;
    __syncthreads();
    add_listed_rows(sums, dx, list, count, of, C);
    __syncthreads();
    count = 0;
  }
  for (int i = static_cast<int>(threadIdx.x); i < own.count * of.packs; i += block_threads) {
    const std::int64_t c = i % of.packs * N;
    To* const to = dwte + (begin + i / of.packs) * C + c;
    Pack<N> all = load_pack<N>(to, C - c), sum{};
    for (int group = 0; group < of.groups; ++group) sum += sums[group * of.tokens * of.packs + i];
    store_pack(to, all += sum, C - c);
  }
}

/// The division with the most tokens in a block that fit into shared memory and leave blocks for all
/// multiprocessors.
template <class T>
TokenSums token_sums(std::int64_t vocabulary, std::int64_t C)
{
  constexpr std::int64_t shared_bytes = 96 << 10, enough = 512;  // blocks
  const std::int64_t packs = divided_up(C, pack_size<T>),
                     groups = std::clamp<std::int64_t>(block_threads / packs, 1, 8);
  const std::int64_t fitting =
      shared_bytes / (groups * packs * static_cast<std::int64_t>(sizeof(Pack<pack_size<T>>)));
  const std::int64_t tokens = std::clamp<std::int64_t>(std::min(fitting, vocabulary / enough), 1, 32);
  return {static_cast<int>(groups), static_cast<int>(tokens), static_cast<int>(packs)};
}

}  // namespace

void CudaKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                                 const SumOrder&) const
{
  // forward:   y[r] = wte[token[r]]
  // gradient:  dwte[v] += sum of dx[r] over the rows r whose token is v
  const std::int64_t R = tokens.elements(), C = dx.elements() / std::max<std::int64_t>(R, 1);
  with_gpu_type(dwte.type(), [&]<class To>(To) {
    with_gpu_type(dx.type(), [&]<class From>(From) {
      const TokenSums of = token_sums<From>(vocabulary.count, std::max<std::int64_t>(C, 1));
      const std::int64_t sums = static_cast<std::int64_t>(of.groups) * of.tokens * of.packs;
      const std::int64_t blocks = R == 0 ? 0 : divided_up(vocabulary.count, of.tokens);
      launch({on_, dim3(static_cast<unsigned>(blocks)), block_threads,
              static_cast<std::int64_t>(sizeof(TokenList) + sums * sizeof(Pack<pack_size<From>>))},
             add_token_rows<To, From>, dwte.data<To>(), dx.data<From>(), tokens.data<std::int32_t>(), vocabulary,
             of, R, C);
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
