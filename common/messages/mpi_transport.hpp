#pragma once

#include <cstdint>
#include <vector>

#include "common/messages/communicator.hpp"
#include "common/messages/transport.hpp"

/// @file
/// Communication over MPI, between tensors in the host's memory.

namespace rankwise {

/// The tag of a collective's messages: a fingerprint of all that the ranks have to agree on, so that messages of
/// collectives that differ never meet.
/// @param number   how many the group has made with this one.
/// @param largest  tag that there is.
/// @return  1 <= tag <= largest; 0 is for messages outside of collectives.
int message_tag(const Collective& collective, std::int64_t number, int largest);

/// When a message counts as sent.
enum class Sends : std::uint8_t {
  standard,     ///< when its memory may be used again: a small one may be on its way yet
  synchronous,  ///< when its receiver has begun to receive it, however small it is
};

/// A transport over the ranks of a communicator. A transfer is one message of MPI, or several of at most 1 GiB.
class MpiTransport final : public Transport {
 public:
  /// @param communicator  outlives the transport.
  /// @param stream        of a device whose memory is the host's; outlives the transport.
  /// @param sends         when messages count as sent.
  MpiTransport(const Communicator& communicator, Stream& stream, Sends sends = Sends::standard);
  /// All transfers are finished by then, or the job ends; unless an exception is on its way out.
  ~MpiTransport() override;

  int rank() const override { return communicator_.rank(); }
  int ranks() const override { return communicator_.ranks(); }
  Stream& stream() override { return stream_; }
  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  /// Transfers that were started together; the place is used again when they are finished.
  struct Batch {
    std::vector<MPI_Request> requests;
    std::vector<int> expected;  // bytes that a request receives; -1 where it sends
    bool open = false;
  };

  void start_transfer(const Transfer& transfer, Batch& batch);

  const Communicator& communicator_;
  Stream& stream_;
  const Sends sends_;
  std::vector<Batch> batches_;          // by ticket
  std::vector<MPI_Status> statuses_{};  // of the batch that is being finished
  int largest_tag_;
  int tag_ = 0;                   // of messages that are started now
  std::int64_t collectives_ = 0;  // so far
};

}  // namespace rankwise
