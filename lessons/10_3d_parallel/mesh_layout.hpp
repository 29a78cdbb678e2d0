#pragma once

#include <string>
#include <vector>

#include "common/messages/mesh.hpp"
#include "common/program/options.hpp"
#include "gpt2/arithmetic.hpp"
#include "lessons/08_tensor_parallel/split.hpp"

/// @file
/// The degrees of three parallelisms, and who stands where.
///
///     rank = (pp * dp degree + dp) * tp degree + tp
///
/// Tensor-parallel ranks are neighbours, so that they stay inside a node: they send most, and wait for it. The stages of a
/// pipeline send least, and are furthest apart.
///
/// @source  Narayanan et al. 2021 (Megatron-LM), section 3.2.

namespace rankwise {

/// `--dp --tp --pp` and what goes with them.
struct MeshOptions {
  int dp = 0;    ///< replicas; 0: all that is left
  int tp = 0;    ///< ranks that divide every layer; 0: two where they can be halved, or all that is left
  int pp = 0;    ///< ranks that have a run of layers each; 0: as tp
  int zero = 1;  ///< 1: optimizer states are shared out among replicas; 0: each has all
  bool sequence_parallel = false;  ///< between the divided layers each rank has T / t tokens of each sequence
  bool regather = false;           ///< normalised rows are gathered again in the backward pass, and not kept
  bool show_groups = false;        ///< print who stands where

  /// The degrees, with what stands for 0 replaced.
  Layout layout(int ranks) const;
  /// What lesson 08 knows of it.
  SplitOptions split(int ranks) const;
};

/// Declares all of them.
void declare(OptionTable& table, MeshOptions& options);

/// Refuses degrees that do not make up the ranks.
/// @throws UserError  with factorisations that do; and for other values that cannot be.
void check_mesh_options(const MeshOptions& options, int ranks);

/// All ways to write a number as dp tp pp, by tp, then pp.
std::vector<Layout> factorisations(int ranks);

/// The axes of the mesh, the outermost first: pp, dp, tp.
std::vector<Axis> axes_of(const Layout& layout);

/// Where a rank stands.
struct MeshCoordinates {
  int dp = 0;  ///< which replica
  int tp = 0;  ///< which part of every layer
  int pp = 0;  ///< which place in the pipeline
};
/// The place of a rank.
MeshCoordinates place_of(const Layout& layout, int rank);
/// The rank at a place.
int rank_of(const Layout& layout, const MeshCoordinates& place);

}  // namespace rankwise
