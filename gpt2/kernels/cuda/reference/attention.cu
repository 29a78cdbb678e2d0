#include <cmath>
#include <limits>

#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/cuda/reference/ordered_sum.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/dropout_mask.hpp"
#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

namespace {

/// The dot product of two rows of D channels: lane_count interleaved sums, then added pairwise, as in the reference
/// kernels of the CPU.
template <class T>
__device__ float dot(const T* a, const T* b, std::int64_t D)
{
  return stacked_sum(lane_count, [&](std::int64_t lane) {
    float sum = 0;
    for (std::int64_t d = lane; d < D; d += lane_count) sum += widened(a[d]) * widened(b[d]);
    return sum;
  });
}

/// Number of neighbouring channels of a head that a thread computes at a time; it keeps them in a tree of sums.
constexpr std::int64_t most_channels_of_a_thread = 32;

/// Calls f(channels) for the channels of a head, at most most_channels_of_a_thread at a time.
template <class F>
__device__ void for_each_channels(std::int64_t D, F&& f)
{
  for (std::int64_t first = 0; first < D; first += most_channels_of_a_thread)
    f(intersect({0, D}, {first, most_channels_of_a_thread}));
}

/// A thread's sums over some channels of a head.
struct ChannelSums {
  /// at[d] += factor b[d] for each channel.
  template <class T>
  __device__ void add(float factor, const T* b, Range channels)
  {
    for (std::int64_t d = 0; d < channels.count; ++d) at[d] += factor * widened(b[channels.first + d]);
  }

  float at[most_channels_of_a_thread];
};

/// Places of the tree over the leaves of a sequence.
struct SumTree {
  static constexpr std::int64_t places = tree_places(leaves_of_a_sequence);

  /// at[0] = the sum of leaf(sums, i), which adds the terms of leaf i to sums that are 0.
  template <class Leaf>
  __device__ void sum(const SumOrder& order, Leaf&& leaf)
  {
    tree_in_places(
        order.leaves(),
        [&](std::int64_t place, std::int64_t i) {
          at[place] = {};
          leaf(at[place], i);
        },
        [&](std::int64_t place) {
          for (std::int64_t d = 0; d < most_channels_of_a_thread; ++d) at[place].at[d] += at[place + 1].at[d];
        });
  }

  ChannelSums at[places];
};

/// A soft-max over some of the keys that a query sees, as it is before the division, with some channels of the output.
struct SoftmaxSums {
  float maximum, sum;
  ChannelSums output;
};

/// The two of them together, as the reference kernels of the CPU merge them.
__device__ inline void merge(float& maximum, float& sum, float* output, float other_maximum, float other_sum,
                             const float* other_output, std::int64_t channels)
{
  if (other_sum == 0) return;
  const bool first = sum == 0;
  const float larger = first || maximum < other_maximum ? other_maximum : maximum;
  const float a = first ? 0 : std::exp(maximum - larger), b = std::exp(other_maximum - larger);
  maximum = larger;
  sum = sum * a + other_sum * b;
  for (std::int64_t d = 0; d < channels; ++d) output[d] = output[d] * a + other_output[d] * b;
}

/// The soft-max of one query over the keys of the run that it sees, with some channels of its output; scores are
/// recomputed instead of stored.
template <class T, class Factor>
__device__ SoftmaxSums softmax(const HeadView<T>& head, std::int64_t query, const KeyLeaves& leaves, float scale,
                               const Factor& factor, Range channels)
{
  SoftmaxSums places[SumTree::places];
  tree_in_places(
      leaves.order.leaves(),
      [&](std::int64_t place, std::int64_t leaf) {
        SoftmaxSums& to = places[place];
        to = {-std::numeric_limits<float>::infinity(), 0, {}};
        const Range keys = leaves.seen(leaf);
        for (std::int64_t k = keys.first; k < keys.end(); ++k) {
          const float score = scale * dot(head.query(query), head.key(k), head.D);
          if (to.maximum < score) to.maximum = score;
        }
        for (std::int64_t k = keys.first; k < keys.end(); ++k) {
          const float weight = std::exp(scale * dot(head.query(query), head.key(k), head.D) - to.maximum);
          to.sum += weight;
          to.output.add(factor(k) * weight, head.value(k), channels);
        }
      },
      [&](std::int64_t place) {
        SoftmaxSums &to = places[place], &from = places[place + 1];
        merge(to.maximum, to.sum, to.output.at, from.maximum, from.sum, from.output.at, channels.count);
      });
  return places[0];
}

/// Sizes, positions, mask and dropout of a run of queries and a run of keys. Of the B heads rows of queries, head by
/// head of each sequence, row i is query i mod (queries) of head i / (queries); keys likewise.
struct Layer {
  Layer(const AttentionShape& of, const AttentionRuns& tokens, const Dropout& dropout)
      : shape(of),
        runs(tokens),
        visible_keys(of),
        mask(dropout),
        dropped(dropout.active()),
        scale(1 / std::sqrt(static_cast<float>(of.D))),
        key_order(SumOrder::tokens(tokens.keys, of.T)),
        query_order(SumOrder::tokens(tokens.queries, of.T))
  {
  }
  /// The keys of the run that query @p q of sequence @p b sees.
  __device__ KeyLeaves seen(std::int64_t b, std::int64_t q) const { return {key_order, visible_keys(b, q, runs)}; }
  /// Index of a query among the rows of statistics, (B, heads, queries).
  __device__ std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return (b * shape.heads.count + h) * runs.queries.count + q;
  }
  /// Offset of a query in (B queries, D heads).
  __device__ std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return ((b * runs.queries.count + q) * shape.heads.count + h) * shape.D;
  }
  /// The dropout factor of the weight of key @p k for query @p q.
  __device__ float factor(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) const
  {
    if (!dropped) return 1;
    const std::int64_t key = runs.keys.first + k;
    return static_cast<float>(mask.factors(b, q, shape.heads.first + h, key)[key % 4]);
  }

  AttentionShape shape;
  AttentionRuns runs;
  VisibleKeys visible_keys;
  DropoutMask mask;
  bool dropped;
  float scale;  // of the scores
  SumOrder key_order, query_order;
};

/// Which queries, keys and values a kernel reads: those of one tensor for a whole layer, of two for runs.
template <class T>
struct Source {
  /// One head of one sequence.
  __device__ HeadView<T> head(const Layer& layer, std::int64_t b, std::int64_t h) const
  {
    if (kv == nullptr) return {qkv, layer.shape, b, h};
    return {qkv, kv, layer.shape, layer.runs, b, h};
  }

  T* qkv;
  T* kv;  // null: keys and values are those of qkv
};

/// Calls f(b, h, t) in a thread for each of @p tokens tokens of each head.
template <class F>
void for_each_token(cudaStream_t stream, const AttentionShape& shape, std::int64_t tokens, const F& f)
{
  const std::int64_t heads = shape.heads.count;
  for_each(stream, shape.B * heads * tokens, [=] __device__(std::int64_t i) {
    const std::int64_t bh = i / tokens;
    f(bh / heads, bh % heads, i % tokens);
  });
}

/// The runs of a whole layer.
AttentionRuns all_tokens(const AttentionShape& shape)
{
  return {{0, shape.T}, {0, shape.T}};
}

// ---- forward pass ------------------------------------------------------------------------------------------------------

/// A thread computes one query of one head. 4 (4 R D heads + R heads) bytes move.
template <class T>
void forward(cudaStream_t stream, T* y, float* log_sum_exp, Source<T> in, Layer layer)
{
  for_each_token(stream, layer.shape, layer.runs.queries.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t q) {
                   const HeadView<T> head = in.head(layer, b, h);
                   const KeyLeaves leaves = layer.seen(b, q);
                   const auto factor = [&](std::int64_t k) { return layer.factor(b, h, q, k); };
                   for_each_channels(head.D, [&](Range channels) {
                     const SoftmaxSums found = softmax(head, q, leaves, layer.scale, factor, channels);
                     T* const to = y + layer.offset(b, h, q) + channels.first;
                     for (std::int64_t d = 0; d < channels.count; ++d) to[d] = T(found.output.at[d] / found.sum);
                     log_sum_exp[layer.row(b, h, q)] = found.maximum + std::log(found.sum);
                   });
                 });
}

/// The tensors of a SoftmaxPartial.
struct PartialView {
  explicit PartialView(const SoftmaxPartial& partial)
      : heads(partial.sum.extent(1)),
        queries(partial.sum.extent(2)),
        rows(partial.sum.elements()),
        D(partial.output.elements() / rows),
        maximum(partial.maximum.data<float>()),
        sum(partial.sum.data<float>()),
        output(partial.output.data<float>())
  {
  }
  /// Offset of the channels of row @p i of (B, heads, queries) in (B queries, D heads).
  __device__ std::int64_t offset(std::int64_t i) const
  {
    return ((i / (heads * queries) * queries + i % queries) * heads + i / queries % heads) * D;
  }

  std::int64_t heads, queries, rows, D;
  float *maximum, *sum, *output;
};

/// A thread computes one query of one head. 4 (2 Q D heads + 2 K D heads + 2 Q heads) bytes move, Q = B queries, K = B
/// keys.
template <class T>
void partial_forward(cudaStream_t stream, PartialView to, Source<T> in, Layer layer)
{
  for_each_token(stream, layer.shape, layer.runs.queries.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t q) {
                   const HeadView<T> head = in.head(layer, b, h);
                   const KeyLeaves leaves = layer.seen(b, q);
                   const auto factor = [&](std::int64_t k) { return layer.factor(b, h, q, k); };
                   for_each_channels(head.D, [&](Range channels) {
                     const SoftmaxSums found = softmax(head, q, leaves, layer.scale, factor, channels);
                     float* const out = to.output + layer.offset(b, h, q) + channels.first;
                     for (std::int64_t d = 0; d < channels.count; ++d) out[d] = found.output.at[d];
                     to.maximum[layer.row(b, h, q)] = found.maximum;
                     to.sum[layer.row(b, h, q)] = found.sum;
                   });
                 });
}

/// A thread merges one query of one head. 12 (Q D heads + 2 Q heads) bytes move.
void merge(cudaStream_t stream, PartialView into, PartialView from)
{
  for_each(stream, into.rows, [=] __device__(std::int64_t i) {
    merge(into.maximum[i], into.sum[i], into.output + into.offset(i), from.maximum[i], from.sum[i],
          from.output + from.offset(i), into.D);
  });
}

/// A thread divides one query of one head. 8 Q D heads + 12 Q heads bytes move.
template <class T>
void divide(cudaStream_t stream, T* y, float* log_sum_exp, PartialView partial)
{
  for_each(stream, partial.rows, [=] __device__(std::int64_t i) {
    const std::int64_t at = partial.offset(i);
    for (std::int64_t d = 0; d < partial.D; ++d) y[at + d] = T(partial.output[at + d] / partial.sum[i]);
    log_sum_exp[i] = partial.maximum[i] + std::log(partial.sum[i]);
  });
}

/// A thread copies one element.
template <class To, class From>
void copy_elements(cudaStream_t stream, TypedMatrix<To> to, TypedMatrix<From> from, std::int64_t rows,
                   std::int64_t columns)
{
  for_each_element(stream, rows, columns, [=] __device__(std::int64_t i, std::int64_t j) {
    to.first[i * to.row_stride + j * to.column_stride] =
        To(widened(from.first[i * from.row_stride + j * from.column_stride]));
  });
}

/// A thread copies one element of the rows that are appended to the cache. 16 D heads bytes per token move.
template <class T>
void append_to_cache(cudaStream_t stream, T* cache, const T* qkv, std::int64_t width, Range tokens)
{
  for_each_element(stream, tokens.count, 2 * width, [=] __device__(std::int64_t t, std::int64_t i) {
    cache[(tokens.first + t) * 2 * width + i] = qkv[t * 3 * width + width + i];
  });
}

/// A thread computes one new token of one head. 8 D heads bytes per token of the sequence
/// move.
template <class T>
void cached_forward(cudaStream_t stream, T* y, T* cache, T* qkv, AttentionShape shape, Range tokens, SumOrder order)
{
  const float scale = 1 / std::sqrt(static_cast<float>(shape.D));
  for_each_element(stream, tokens.count, shape.heads.count, [=] __device__(std::int64_t t, std::int64_t h) {
    const HeadView<T> head(qkv, cache, shape, {tokens, {0, tokens.end()}}, 0, h);
    const KeyLeaves leaves{order, tokens.first + t + 1};
    for_each_channels(head.D, [&](Range channels) {
      const SoftmaxSums found = softmax(
          head, t, leaves, scale, [](std::int64_t) { return 1.0f; }, channels);
      T* const to = y + (t * shape.heads.count + h) * shape.D + channels.first;
      for (std::int64_t d = 0; d < channels.count; ++d) to[d] = T(found.output.at[d] / found.sum);
    });
  });
}

// ---- backward pass -----------------------------------------------------------------------------------------------------

/// Inputs of the backward pass.
template <class T>
struct BackwardView {
  const T *dy, *y;
  const float* log_sum_exp;
};

/// Where the gradients of a whole layer go: (B T, 3 D heads), as its queries, keys and values.
template <class T>
struct LayerGradient {
  __device__ T* query(const Layer& layer, std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return HeadView<T>(dqkv, layer.shape, b, h).query(q);
  }
  __device__ T* key(const Layer& layer, std::int64_t b, std::int64_t h, std::int64_t k) const
  {
    return HeadView<T>(dqkv, layer.shape, b, h).key(k);
  }

  T* dqkv;
};

/// Where those of two runs go: (B queries, D heads) and (B keys, 2 D heads).
struct RunGradient {
  __device__ float* query(const Layer& layer, std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return dq + layer.offset(b, h, q);
  }
  __device__ float* key(const Layer& layer, std::int64_t b, std::int64_t h, std::int64_t k) const
  {
    return dkv + ((b * layer.runs.keys.count + k) * 2 * layer.shape.heads.count + h) * layer.shape.D;
  }

  float *dq, *dkv;
};

/// The gradient of the score of one query and one key that it sees, and the weight of the key's value.
struct PairGradient {
  float dscore;  ///< gradient of scale q.k
  float weight;  ///< weight of the value, after dropout
};

/// forward:   weight[k] = exp(scale q.k - log_sum_exp), y = sum over k of factor[k] weight[k] v[k]
/// gradient:  dscore[k] = weight[k] (dweight[k] - sum over j of weight[j] dweight[j]), where the sum equals dy . y
template <class T>
__device__ PairGradient pair_backward(const Layer& layer, const HeadView<T>& head, const BackwardView<T>& in,
                                      std::int64_t b, std::int64_t h, std::int64_t query, std::int64_t key)
{
  const std::int64_t D = layer.shape.D, at = layer.offset(b, h, query);
  const float weight =
      std::exp(layer.scale * dot(head.query(query), head.key(key), D) - in.log_sum_exp[layer.row(b, h, query)]);
  const float factor = layer.factor(b, h, query, key);
  const float dweight = factor * dot(in.dy + at, head.value(key), D);
  return {weight * (dweight - dot(in.dy + at, in.y + at, D)), weight * factor};
}

/// Writes @p count sums, rounded.
template <class T>
__device__ void store(T* to, const float* sums, std::int64_t count)
{
  for (std::int64_t d = 0; d < count; ++d) to[d] = T(sums[d]);
}

/// A thread computes the gradient of one query of one head: dq = sum over k of scale dscore[k] k, a tree over the
/// leaves of the keys. 4 (6 R D heads + R heads) bytes move.
/// @param to  LayerGradient or RunGradient.
template <class T, class To>
void queries_backward(cudaStream_t stream, To to, Source<T> source, BackwardView<T> in, Layer layer)
{
  for_each_token(stream, layer.shape, layer.runs.queries.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t q) {
                   const HeadView<T> head = source.head(layer, b, h);
                   const KeyLeaves leaves = layer.seen(b, q);
                   for_each_channels(head.D, [&](Range channels) {
                     SumTree dquery;
                     dquery.sum(leaves.order, [&](ChannelSums& sums, std::int64_t leaf) {
                       const Range keys = leaves.seen(leaf);
                       for (std::int64_t k = keys.first; k < keys.end(); ++k)
                         sums.add(layer.scale * pair_backward(layer, head, in, b, h, q, k).dscore, head.key(k),
                                  channels);
                     });
                     auto* const out = to.query(layer, b, h, q) + channels.first;
                     store(out, dquery.at[0].at, channels.count);
                   });
                 });
}

/// A thread computes the gradients of one key and its value, of one head: dk = sum over q of scale dscore[q] q, and
/// dv = sum over q of factor[q] weight[q] dy[q], trees over the leaves of the queries. 4 (7 R D heads + R heads) bytes
/// move.
/// @param to  LayerGradient or RunGradient.
template <class T, class To>
void keys_backward(cudaStream_t stream, To to, Source<T> source, BackwardView<T> in, Layer layer)
{
  const std::int64_t section = layer.shape.heads.count * layer.shape.D;  // from a key's gradient to its value's
  for_each_token(stream, layer.shape, layer.runs.keys.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t key) {
                   const HeadView<T> head = source.head(layer, b, h);
                   const auto for_each_query = [&](std::int64_t leaf, const auto& f) {
                     const Range queries = layer.query_order.run(leaf, 0);
                     for (std::int64_t q = queries.first; q < queries.end(); ++q)
                       if (key < layer.seen(b, q).keys) f(q, pair_backward(layer, head, in, b, h, q, key));
                   };
                   for_each_channels(head.D, [&](Range channels) {
                     SumTree tree;
                     tree.sum(layer.query_order, [&](ChannelSums& sums, std::int64_t leaf) {
                       for_each_query(leaf, [&](std::int64_t q, const PairGradient& pair) {
                         sums.add(layer.scale * pair.dscore, head.query(q), channels);
                       });
                     });
                     auto* const out = to.key(layer, b, h, key) + channels.first;
                     store(out, tree.at[0].at, channels.count);
                     tree.sum(layer.query_order, [&](ChannelSums& sums, std::int64_t leaf) {
                       for_each_query(leaf, [&](std::int64_t q, const PairGradient& pair) {
                         sums.add(pair.weight, in.dy + layer.offset(b, h, q), channels);
                       });
                     });
                     store(out + section, tree.at[0].at, channels.count);
                   });
                 });
}

}  // namespace

void CudaReferenceKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                             const AttentionShape& shape, const Dropout& dropout) const
{
  with_gpu_type(y.type(), [&]<class T>(T) {
    forward(gpu(), y.data<T>(), log_sum_exp.data<float>(), Source<T>{qkv.data<T>(), nullptr},
            Layer(shape, all_tokens(shape), dropout));
  });
}

void CudaReferenceKernels::attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                                             const AttentionShape& shape, const AttentionRuns& runs,
                                             const Dropout& dropout) const
{
  with_gpu_type(qkv.type(), [&]<class T>(T) {
    partial_forward(gpu(), PartialView(partial), Source<T>{qkv.data<T>(), kv.data<T>()},
                    Layer(shape, runs, dropout));
  });
}

void CudaReferenceKernels::attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const
{
  merge(gpu(), PartialView(into), PartialView(from));
}

void CudaReferenceKernels::attention_divide(const Tensor& y, const Tensor& log_sum_exp,
                                            const SoftmaxPartial& partial) const
{
  with_gpu_type(y.type(),
                [&]<class T>(T) { divide(gpu(), y.data<T>(), log_sum_exp.data<float>(), PartialView(partial)); });
}

void CudaReferenceKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                                    const AttentionShape& shape, Range tokens) const
{
  check(tokens.end() <= cache.extent(0), "the sequence has more tokens than the key-value cache has rows");
  with_gpu_type(y.type(), [&]<class T>(T) {
    append_to_cache(gpu(), cache.data<T>(), qkv.data<T>(), shape.heads.count * shape.D, tokens);
    cached_forward(gpu(), y.data<T>(), cache.data<T>(), qkv.data<T>(), shape, tokens,
                   SumOrder::tokens({0, cache.extent(0)}, cache.extent(0)));
  });
}

void CudaReferenceKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                              const Tensor& log_sum_exp, const Tensor& qkv,
                                              const AttentionShape& shape, const Dropout& dropout) const
{
  const Layer layer(shape, all_tokens(shape), dropout);
  with_gpu_type(dqkv.type(), [&]<class T>(T) {
    const BackwardView<T> in{dy.data<T>(), y.data<T>(), log_sum_exp.data<float>()};
    const Source<T> source{qkv.data<T>(), nullptr};
    const LayerGradient<T> to{dqkv.data<T>()};
    queries_backward(gpu(), to, source, in, layer);
    keys_backward(gpu(), to, source, in, layer);
  });
}

void CudaReferenceKernels::attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy,
                                                      const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                                      const Tensor& kv, const AttentionShape& shape,
                                                      const AttentionRuns& runs, const Dropout& dropout) const
{
  const Layer layer(shape, runs, dropout);
  with_gpu_type(y.type(), [&]<class T>(T) {
    const BackwardView<T> in{dy.data<T>(), y.data<T>(), log_sum_exp.data<float>()};
    const Source<T> source{qkv.data<T>(), kv.data<T>()};
    const RunGradient to{dq.data<float>(), dkv.data<float>()};
    queries_backward(gpu(), to, source, in, layer);
    keys_backward(gpu(), to, source, in, layer);
  });
}

void CudaReferenceKernels::copy(const Matrix& to, const Matrix& from) const
{
  check(to.rows == from.rows && to.columns == from.columns, "a matrix is copied to one of other sizes");
  with_gpu_type(to.data.type(), [&]<class To>(To) {
    with_gpu_type(from.data.type(), [&]<class From>(From) {
      copy_elements(gpu(), TypedMatrix<To>(to), TypedMatrix<From>(from), to.rows, to.columns);
    });
  });
}

}  // namespace rankwise
