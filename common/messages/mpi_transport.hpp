#pragma once

#include <cstdint>
#include <vector>

#include "common/messages/communicator.hpp"
#include "common/messages/transport.hpp"

/// @file
/// Messages over MPI, between tensors in host memory.

namespace rankwise {

/// Tag of a collective's messages: a hash of everything on which the ranks must agree, so that messages of
/// different collectives do not match.
/// @param number   number of the group's collectives so far, this one included.
/// @param largest  largest valid tag.
/// @return  1 <= tag <= largest; tag 0 is for messages outside of collectives.
int message_tag(const Collective& collective, std::int64_t number, int largest);

/// Condition for a send to be complete.
enum class Sends : std::uint8_t {
  standard,     ///< its memory may be reused; a small message may still be under way
  synchronous,  ///< the receiver has begun to receive, however small the message
};

/// A transport between the ranks of a communicator. A transfer is one or more MPI messages of at most 1 GiB.
class MpiTransport final : public Transport {
 public:
  /// @param communicator  outlives the transport.
  /// @param stream        stream of a device whose memory is host memory; outlives the transport.
  /// @param sends         condition for a send to be complete.
  MpiTransport(const Communicator& communicator, Stream& stream, Sends sends = Sends::standard);
  /// All transfers must have been finished, or the job ends; this is not checked during stack unwinding.
  ~MpiTransport() override;

  int rank() const override { return communicator_.rank(); }
  int ranks() const override { return communicator_.ranks(); }
  Stream& stream() override { return stream_; }
  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  /// Transfers that were started together; the entry is reused after they are finished.
  struct Batch {
    std::vector<MPI_Request> requests;
    std::vector<int> expected;  // bytes to receive, by request; -1 for a send
    bool open = false;
  };

  void start_transfer(const Transfer& transfer, Batch& batch);
  void wait_for(Batch& batch);
  void give_up();

  const Communicator& communicator_;
  Stream& stream_;
  const Sends sends_;
  std::vector<Batch> batches_;          // by ticket
  std::vector<MPI_Status> statuses_{};  // statuses of the batch being finished
  int largest_tag_;
  int tag_ = 0;                   // tag of messages started now
  std::int64_t collectives_ = 0;  // number so far
};

}  // namespace rankwise
