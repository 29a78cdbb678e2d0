#pragma once

#include <string>
#include <vector>

#include "common/messages/mesh.hpp"
#include "common/program/options.hpp"
#include "gpt2/arithmetic.hpp"
#include "lessons/parallel/tensor/split.hpp"

/// @file
/// The degrees of data, tensor and pipeline parallelism, and the coordinates of ranks.
///
///     rank = (pp * dp degree + dp) * tp degree + tp
///
/// Tensor-parallel ranks are neighbours, inside a node if possible: they send most, and wait for their messages.
/// The stages of a pipeline send least, and are furthest from each other.
///
/// @source  Narayanan et al. 2021 (Megatron-LM), section 3.2.

namespace rankwise {

/// `--dp --tp --pp` and the options that go with them.
struct MeshOptions {
  int dp = 0;    ///< replicas; 0: N / (tp pp)
  int tp = 0;    ///< ranks that divide every layer; 0: two if the remaining ranks are even, or all of them
  int pp = 0;    ///< ranks with a run of layers each; 0: as for tp
  int zero = 1;  ///< 1: optimizer states are sharded among replicas; 0: replicated
  bool sequence_parallel = false;  ///< between the divided layers a rank has T / tp tokens of each sequence
  bool regather = false;           ///< keep only this rank's normalised rows, gather all again in backward
  bool show_groups = false;        ///< print the coordinates and groups of all ranks

  /// The degrees, with defaults in the place of 0.
  Layout layout(int ranks) const;
  /// The options of lesson 08 for this mesh.
  SplitOptions split(int ranks) const;
  /// The same options with other degrees; without those of sequence parallelism, if tp is one.
  MeshOptions with(const Layout& degrees) const;
};

/// Declares all of them.
void declare(OptionTable& table, MeshOptions& options);

/// Refuses degrees whose product is not the number of ranks.
/// @throws UserError  with factorisations that are possible; and for other invalid values.
void check_mesh_options(const MeshOptions& options, int ranks);

/// All factorisations of a number as dp tp pp, ordered by tp, then pp.
std::vector<Layout> factorisations(int ranks);

/// The degrees as text, as "dp=2 tp=1 pp=1", or "dp=2 tp=1 pp=1 cp=2 ep=2".
/// @param cp, ep  those of lesson 16; 0 without these axes.
std::string describe(const Layout& layout, int cp = 0, int ep = 0);

/// The axes of the mesh, the outermost first: pp, dp, tp.
std::vector<Axis> axes_of(const Layout& layout);

/// Coordinates of a rank on the mesh.
struct MeshCoordinates {
  int dp = 0;  ///< replica
  int tp = 0;  ///< tensor-parallel shard of every layer
  int pp = 0;  ///< place in the pipeline
};
/// The coordinates of a rank.
MeshCoordinates place_of(const Layout& layout, int rank);

}  // namespace rankwise
