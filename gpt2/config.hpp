#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/memory/tensor.hpp"

/// @file
/// The configuration of a model: its sizes, its attention mask, and its parameter and operation counts.

namespace rankwise {

/// The keys that a query attends to. With every mask these are the first keys of the sequence, so one number
/// describes them.
struct Mask {
  /// The three masks.
  enum class Kind : std::uint8_t {
    causal,  ///< a query sees itself and the tokens before it (GPT-2)
    prefix,  ///< as causal, and every query sees the first `prefix` tokens (prefix LM)
    full,    ///< every query sees every key (BERT)
  };
  Kind kind = Kind::causal;  ///< one of the three
  std::int64_t prefix = 0;   ///< number of tokens that every query sees; only for Kind::prefix

  /// Number of keys, counted from the first, that the token at @p query sees in a sequence of @p T tokens.
  constexpr std::int64_t visible_keys(std::int64_t query, std::int64_t T) const
  {
    if (kind == Kind::full) return T;
    const std::int64_t causal_keys = query + 1;
    const std::int64_t prefix_keys = prefix < T ? prefix : T;
    return kind == Kind::prefix && prefix_keys > causal_keys ? prefix_keys : causal_keys;
  }

  /// "causal", "prefix:K" or "full".
  std::string text() const;
  /// The reverse of text().
  /// @throws UserError for anything else.
  static Mask parse(const std::string& text);
};

/// Kind of model that the sizes describe.
enum class Architecture : std::uint8_t {
  gpt2,  ///< a decoder: predicts the next token (Radford et al. 2019)
  bert,  ///< an encoder: predicts masked tokens, and whether a sentence follows another (Devlin et al. 2018)
};

/// Its name: "gpt2" or "bert".
constexpr const char* name_of(Architecture architecture)
{
  return architecture == Architecture::bert ? "bert" : "gpt2";
}

/// The experts of a model: in chosen blocks E MLPs take the place of one, and a router gives each token to k of them.
/// With E = 1 there is no router, and the model is the dense one.
/// @source  Shazeer et al. 2017; Fedus et al. 2022 (Switch Transformer), sections 2.1 and 2.2.
struct ExpertConfig {
  std::int64_t count = 1;        ///< E, experts of a block that has experts
  std::int64_t per_token = 1;    ///< k, experts that compute a token
  std::int64_t every = 2;        ///< n: the last of every n blocks has experts
  double capacity_factor = 0;    ///< an expert takes this many times its equal share of a sequence; 0: any number
  double auxiliary_loss = 0.01;  ///< weight of the loss that favours equal loads

  /// c, the number of tokens of a sequence of @p T that one expert takes: ceil(factor k T / E), at most T.
  std::int64_t capacity(std::int64_t T) const;
};

/// The sizes of a model.
struct ModelConfig {
  std::string name;             ///< preset that it is based on
  std::int64_t layers = 0;      ///< L, blocks of one attention and one MLP branch
  std::int64_t heads = 0;       ///< H
  std::int64_t channels = 0;    ///< C
  std::int64_t context = 0;     ///< longest sequence: the number of position embeddings
  std::int64_t vocabulary = 0;  ///< V
  Mask mask{};                  ///< keys that a query attends to
  /// Patterns of the tensors that training leaves as they are (fine-tuning), such as "h.[0-3].*" (fnmatch).
  std::vector<std::string> frozen = {};
  Architecture architecture = Architecture::gpt2;  ///< arrangement of the layers
  ExpertConfig experts = {};                       ///< experts of the MLP branches

  /// True if the MLP of block @p block consists of experts.
  bool has_experts(std::int64_t block) const { return experts.count > 1 && (block + 1) % experts.every == 0; }
  /// Number of blocks with experts.
  std::int64_t expert_blocks() const { return experts.count > 1 ? layers / experts.every : 0; }
  /// Parameters of one expert: 8 C^2 + 5 C.
  std::int64_t expert_parameters() const { return 8 * channels * channels + 5 * channels; }
  /// V rounded up to a multiple of 8 in every layout, so that it divides into 8 equal shards.
  std::int64_t padded_vocabulary() const { return (vocabulary + 7) / 8 * 8; }
  /// Entries that each of @p parts equal shards of the vocabulary stores; the last shards may have more padding.
  std::int64_t stored_vocabulary(std::int64_t parts) const { return (padded_vocabulary() + parts - 1) / parts; }
  /// D = C / H.
  std::int64_t head_channels() const { return channels / heads; }
  /// P = V C + context C + L (12 C^2 + 13 C) + 2 C for GPT-2, and for BERT
  /// V C + (context + 2) C + L (12 C^2 + 13 C) + 2 C^2 + 8 C + V + 2; without padding. Each block with experts has
  /// (E - 1) (8 C^2 + 5 C) + C E more.
  std::int64_t parameters() const;
  /// Parameters that one token meets: of each block with experts k of the E experts.
  std::int64_t active_parameters() const
  {
    return parameters() - expert_blocks() * (experts.count - experts.per_token) * expert_parameters();
  }
};

/// The sizes of a model, by the names of their options.
inline constexpr std::array<std::pair<const char*, std::int64_t ModelConfig::*>, 5> model_sizes{
    {{"layers", &ModelConfig::layers},
     {"heads", &ModelConfig::heads},
     {"channels", &ModelConfig::channels},
     {"context", &ModelConfig::context},
     {"vocabulary", &ModelConfig::vocabulary}}};

/// Those that a model with experts has besides.
inline constexpr std::array<std::pair<const char*, std::int64_t ExpertConfig::*>, 2> expert_sizes{
    {{"experts", &ExpertConfig::count}, {"expert-every", &ExpertConfig::every}}};

/// The preset with this name: nano, mini, gpt2, gpt2-medium, gpt2-large or gpt2-xl; for BERT nano, mini, bert-base or
/// bert-large, whose vocabularies count the special tokens.
ModelConfig preset(const std::string& name, Architecture architecture = Architecture::gpt2);
/// The names of all presets, smallest first.
std::vector<std::string> preset_names(Architecture architecture = Architecture::gpt2);

/// Refuses sizes that no model can have.
/// @throws UserError for example when the number of heads does not divide the channels, or for more than 10^15 parameters.
void check_config(const ModelConfig& config);

/// Refuses steps whose operations or bytes could not be counted in 64 bits.
/// @param config     checked by check_config().
/// @param sequences  sequences of the global batch.
/// @param T          tokens of a sequence.
/// @throws UserError with the largest batch that is possible.
void check_step(const ModelConfig& config, std::int64_t sequences, std::int64_t T);

/// Floating-point operations of one training step.
/// @param config      the model.
/// @param tokens      tokens of the global batch.
/// @param T           tokens of a sequence.
/// @param recompute   true if the forward pass of every block runs twice.
/// @return  (6 P + 12 L C T) per token; with recomputation (8 P + 16 L C T), P the active parameters without the
///          position embeddings. For
///          BERT three times unit_flops() of all units, and once more that of the branches with recomputation.
/// @source  Chowdhery et al. 2022 (PaLM), appendix B; Kaplan et al. 2020, section 2.1 for 6 P.
double step_flops(const ModelConfig& config, std::int64_t tokens, std::int64_t T, bool recompute);

/// Floating-point operations of one training step with recomputation, as reports of large runs count them: without
/// the products inside attention.
/// @param tokens  tokens of the global batch.
/// @return  8 P per token, P without the position embeddings.
/// @source  Narayanan et al. 2021 (Megatron-LM), section 5.1: the first term of 96 B T L C^2 (1 + T / 6 C + V / 16
///          L C).
double recomputed_flops(const ModelConfig& config, std::int64_t tokens);

/// The number of units of a model: the embedding, 2 L branches, the head.
constexpr std::int64_t unit_count(const ModelConfig& config)
{
  return 2 * config.layers + 2;
}

/// Floating-point operations of a unit's forward pass; its backward pass takes twice as many. Three times the sum
/// over all units is step_flops() without recomputation.
/// @param config  the model.
/// @param unit    0 embedding (a lookup and a sum, counted as 0), 1 + i branch i, 2 L + 1 head.
/// @param tokens  number of tokens in the forward pass.
/// @param T       tokens of a sequence.
/// @return  per token: two for each of the unit's active parameters, and 4 C T for attention; the head counts V C
///          parameters. BERT's pooler and its next-sentence output count once a sequence.
/// @source  as for step_flops().
double unit_flops(const ModelConfig& config, std::int64_t unit, std::int64_t tokens, std::int64_t T);

}  // namespace rankwise
