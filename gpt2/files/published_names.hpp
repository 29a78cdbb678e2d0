#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/partition.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// Names and layouts of a model's tensors in Hugging Face's files.
///
/// A GPT-2's are those of the parameter table. BERT's linear layers are stored as (out, in) there, and as (in, out) in
/// the table, which also has q, k and v of a layer as one tensor of 3 C columns.

namespace rankwise {

/// A tensor of a published model, and which elements of a Parameter it holds.
struct PublishedTensor {
  std::string name;         ///< such as "bert.encoder.layer.0.attention.self.key.weight"
  std::int64_t rows = 1;    ///< rows of the parameter; a vector is one row
  std::int64_t width = 0;   ///< columns of the parameter
  Range columns;            ///< columns of the parameter that are here
  bool vector = false;      ///< true if it has one dimension
  bool transposed = false;  ///< true if it is stored as (columns, rows)

  /// Extents, outermost first.
  std::vector<std::int64_t> shape() const;
  /// Number of elements.
  std::int64_t elements() const { return rows * columns.count; }
  /// True if it holds all of the parameter in the same order.
  bool same_layout() const { return !transposed && columns.count == width; }
  /// Index in the parameter of element @p i.
  std::int64_t place(std::int64_t i) const
  {
    const std::int64_t row = transposed ? i % rows : i / columns.count;
    const std::int64_t column = transposed ? i / rows : i % columns.count;
    return row * width + columns.first + column;
  }
};

/// The published tensors that together hold @p parameter, in the order of their columns.
/// @param architecture  architecture of its model.
/// @param parameter     an entry of the table of a whole model.
std::vector<PublishedTensor> published_tensors(Architecture architecture, const Parameter& parameter);

/// Names that the files of an architecture share.
struct PublishedNames {
  std::string called;              ///< "GPT-2" or "BERT"
  std::string example;             ///< the model of the library, and the names of its tensors
  std::string prefix;              ///< prefix that the library may put before the names of parameters
  std::string token_embedding;     ///< name of the (V, C) tensor
  std::string position_embedding;  ///< name of the (context, C) tensor
  std::string of_layer;            ///< name of a tensor that each layer has, {} being the layer's number
  std::vector<std::pair<std::string, std::string>> tied;  ///< copies that a file may have, and their originals
  std::vector<std::string> redundant;                     ///< endings of the names of buffers: masks, positions
};

/// The names of an architecture.
const PublishedNames& published_names(Architecture architecture);

/// The name that a norm's weight or bias has in files that were converted from TensorFlow, as BERT's published ones:
/// gamma or beta. Any other name is returned as it is.
std::string converted_name(const std::string& name);

}  // namespace rankwise
