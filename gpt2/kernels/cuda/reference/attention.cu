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

/// Sums over neighbouring channels of a head that a thread keeps until they are complete. A head with more channels
/// is processed in several passes.
struct ChannelSums {
  static constexpr std::int64_t most = 64;  // channels

  /// Adds factor b[d] to each of @p count sums.
  template <class T>
  __device__ void add(float factor, const T* b, std::int64_t count)
  {
    for (std::int64_t d = 0; d < count; ++d) at[d] += factor * widened(b[d]);
  }
  /// Writes @p count sums, rounded.
  template <class T>
  __device__ void store(T* to, std::int64_t count) const
  {
    for (std::int64_t d = 0; d < count; ++d) to[d] = T(at[d]);
  }

  float at[most];
};

/// Calls f(first, count) for the channels of a head, at most ChannelSums::most at a time.
template <class F>
__device__ void for_each_channels(std::int64_t D, F&& f)
{
  for (std::int64_t first = 0; first < D; first += ChannelSums::most)
    f(first, D - first < ChannelSums::most ? D - first : ChannelSums::most);
}

/// The largest score of a query, and the sum of exp(score - largest) over its keys, with score[k] = scale q.k.
struct SoftmaxSum {
  float largest, sum;
};

template <class Head>
__device__ SoftmaxSum softmax_sum(const Head& head, std::int64_t query, std::int64_t keys, float scale)
{
  SoftmaxSum softmax{-std::numeric_limits<float>::infinity(), 0};
  for (std::int64_t k = 0; k < keys; ++k) {
    const float score = scale * dot(head.query(query), head.key(k), head.D);
    if (softmax.largest < score) softmax.largest = score;
  }
  for (std::int64_t k = 0; k < keys; ++k)
    softmax.sum += std::exp(scale * dot(head.query(query), head.key(k), head.D) - softmax.largest);
  return softmax;
}

/// y[d] = sum over the keys k that a query sees of factor(k)
/// weight[k] v[k, d]; scores are recomputed instead of stored.
template <class T, class Head, class Factor>
__device__ void weighted_values(T* y, const Head& head, std::int64_t query, std::int64_t keys, float scale,
                                const SoftmaxSum& softmax, const Factor& factor)
{
  for_each_channels(head.D, [&](std::int64_t first, std::int64_t count) {
    ChannelSums sums{};
    for (std::int64_t k = 0; k < keys; ++k) {
      const float score = scale * dot(head.query(query), head.key(k), head.D);
      const float weight = std::exp(score - softmax.largest) / softmax.sum;
      sums.add(factor(k) * weight, head.value(k) + first, count);
    }
    sums.store(y + first, count);
  });
}

/// Sizes and dropout of one attention layer, for its kernels. Of the B heads T rows, head by head of each sequence,
/// row i is token i mod T of head i / T.
struct Layer {
  Layer(const AttentionShape& of, const Dropout& dropout)
      : shape(of),
        visible_keys(of),
        mask(dropout),
        dropped(dropout.active()),
        scale(1 / std::sqrt(static_cast<float>(of.D)))
  {
  }
  /// B heads T.
  std::int64_t rows() const { return shape.B * shape.heads.count * shape.T; }
  /// The queries, keys and values of the head that row @p i belongs to.
  template <class T>
  __device__ HeadView<T> head(T* qkv, std::int64_t i) const
  {
    const std::int64_t bh = i / shape.T;
    return {qkv, shape, bh / shape.heads.count, bh % shape.heads.count};
  }
  /// Number of keys that query @p query of the same sequence as row @p i sees.
  __device__ std::int64_t visible(std::int64_t i, std::int64_t query) const
  {
    return visible_keys(i / (shape.T * shape.heads.count), query);
  }
  /// Offset of row @p i in (B T, D heads).
  __device__ std::int64_t offset(std::int64_t i) const
  {
    const std::int64_t bh = i / shape.T, heads = shape.heads.count;
    return ((bh / heads * shape.T + i % shape.T) * heads + bh % heads) * shape.D;
  }
  /// The dropout factor of the weight of @p key for a query of the same head and sequence as row @p i.
  __device__ float factor(std::int64_t i, std::int64_t query, std::int64_t key) const
  {
    if (!dropped) return 1;
    const std::int64_t bh = i / shape.T, h = shape.heads.first + bh % shape.heads.count;
    return static_cast<float>(mask.factors(bh / shape.heads.count, query, h, key)[key % 4]);
  }

  AttentionShape shape;
  VisibleKeys visible_keys;
  DropoutMask mask;
  bool dropped;
  float scale;  // of the scores
};

/// A thread computes one query of one head. 4 (4 R D heads + R heads) bytes move.
template <class T>
void forward(cudaStream_t stream, T* y, float* log_sum_exp, const T* qkv, Layer layer)
{
  for_each(stream, layer.rows(), [=] __device__(std::int64_t i) {
    const std::int64_t query = i % layer.shape.T, keys = layer.visible(i, query);
    const HeadView head = layer.head(qkv, i);
    const SoftmaxSum softmax = softmax_sum(head, query, keys, layer.scale);
    log_sum_exp[i] = softmax.largest + std::log(softmax.sum);
    weighted_values(y + layer.offset(i), head, query, keys, layer.scale, softmax,
                    [&](std::int64_t k) { return layer.factor(i, query, k); });
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

/// A thread computes one new token of one head. 8 D heads bytes per token of the sequence move.
template <class T>
void cached_forward(cudaStream_t stream, T* y, const T* cache, const T* qkv, AttentionShape shape, Range tokens)
{
  const float scale = 1 / std::sqrt(static_cast<float>(shape.D));
  for_each_element(stream, tokens.count, shape.heads.count, [=] __device__(std::int64_t t, std::int64_t h) {
    const CachedHeadView head(qkv, cache, shape, tokens, h);
    const std::int64_t query = tokens.first + t, keys = query + 1;
    const SoftmaxSum softmax = softmax_sum(head, query, keys, scale);
    weighted_values(y + (t * shape.heads.count + h) * shape.D, head, query, keys, scale, softmax,
                    [](std::int64_t) { return 1.0f; });
  });
}

/// Inputs of the backward pass.
template <class T>
struct BackwardView {
  const T *dy, *y, *qkv;
  const float* log_sum_exp;
};

/// The gradient of the score of one query and one key that it sees, and the weight of the key's value.
struct PairGradient {
  float dscore;  ///< gradient of scale q.k
  float weight;  ///< weight of the value, after dropout
};

/// forward:   weight[k] = exp(scale q.k - log_sum_exp), y = sum over k of factor[k] weight[k] v[k]
/// gradient:  dscore[k] = weight[k] (dweight[k] - sum over j of weight[j] dweight[j]), where the sum equals dy . y
/// @param i  any row of the sequence and head.
template <class T>
__device__ PairGradient pair_backward(const Layer& layer, const BackwardView<T>& in, std::int64_t i,
                                      std::int64_t query, std::int64_t key)
{
  const std::int64_t D = layer.shape.D, row = i - i % layer.shape.T + query, at = layer.offset(row);
  const HeadView head = layer.head(in.qkv, i);
  const float weight = std::exp(layer.scale * dot(head.query(query), head.key(key), D) - in.log_sum_exp[row]);
  const float factor = layer.factor(i, query, key);
  const float dweight = factor * dot(in.dy + at, head.value(key), D);
  return {weight * (dweight - dot(in.dy + at, in.y + at, D)), weight * factor};
}

/// A thread computes the gradient of one query of one head: dq = sum over k of scale dscore[k] k.
/// 4 (6 R D heads + R heads) bytes move.
template <class T>
void queries_backward(cudaStream_t stream, T* dqkv, BackwardView<T> in, Layer layer)
{
  for_each(stream, layer.rows(), [=] __device__(std::int64_t i) {
    const std::int64_t query = i % layer.shape.T, keys = layer.visible(i, query);
    const HeadView head = layer.head(in.qkv, i);
    for_each_channels(head.D, [&](std::int64_t first, std::int64_t count) {
      ChannelSums dquery{};
      for (std::int64_t k = 0; k < keys; ++k)
        dquery.add(layer.scale * pair_backward(layer, in, i, query, k).dscore, head.key(k) + first, count);
      dquery.store(layer.head(dqkv, i).query(query) + first, count);
    });
  });
}

/// A thread computes the gradients of one key and its value, of one head: dk = sum over q of scale dscore[q] q, and
/// dv = sum over q of factor[q] weight[q] dy[q]. 4 (7 R D heads + R heads) bytes move.
template <class T>
void keys_backward(cudaStream_t stream, T* dqkv, BackwardView<T> in, Layer layer)
{
  for_each(stream, layer.rows(), [=] __device__(std::int64_t i) {
    const std::int64_t tokens = layer.shape.T, key = i % tokens;
    const HeadView head = layer.head(in.qkv, i);
    for_each_channels(head.D, [&](std::int64_t first, std::int64_t count) {
      ChannelSums dkey{}, dvalue{};
      for (std::int64_t query = 0; query < tokens; ++query) {
        if (key >= layer.visible(i, query)) continue;
        const PairGradient pair = pair_backward(layer, in, i, query, key);
        dkey.add(layer.scale * pair.dscore, head.query(query) + first, count);
        dvalue.add(pair.weight, in.dy + layer.offset(i - key + query) + first, count);
      }
      dkey.store(layer.head(dqkv, i).key(key) + first, count);
      dvalue.store(layer.head(dqkv, i).value(key) + first, count);
    });
  });
}

}  // namespace

void CudaReferenceKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                             const AttentionShape& shape, const Dropout& dropout) const
{
  with_gpu_type(y.type(), [&]<class T>(T) {
    forward(gpu(), y.data<T>(), log_sum_exp.data<float>(), qkv.data<T>(), Layer(shape, dropout));
  });
}

void CudaReferenceKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                                    const AttentionShape& shape, Range tokens) const
{
  check(tokens.end() <= cache.extent(0), "the sequence has more tokens than the key-value cache has rows");
  with_gpu_type(y.type(), [&]<class T>(T) {
    append_to_cache(gpu(), cache.data<T>(), qkv.data<T>(), shape.heads.count * shape.D, tokens);
    cached_forward(gpu(), y.data<T>(), cache.data<T>(), qkv.data<T>(), shape, tokens);
  });
}

void CudaReferenceKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                              const Tensor& log_sum_exp, const Tensor& qkv,
                                              const AttentionShape& shape, const Dropout& dropout) const
{
  const Layer layer(shape, dropout);
  with_gpu_type(dqkv.type(), [&]<class T>(T) {
    const BackwardView<T> in{dy.data<T>(), y.data<T>(), qkv.data<T>(), log_sum_exp.data<float>()};
    queries_backward(gpu(), dqkv.data<T>(), in, layer);
    keys_backward(gpu(), dqkv.data<T>(), in, layer);
  });
}

}  // namespace rankwise
