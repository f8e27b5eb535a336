/* Interpolated n-gram model of bytes: the loss that a trained model must at least beat. */
#ifndef K3_NGRAM_H
#define K3_NGRAM_H

#include "k3t.h"

enum { K3_NGRAM_MAX_ORDER = 5 };

/**
 * Mean negative log-likelihood of the bytes of eval, in nats, counts from train.
 *
 *   p_n(w|h) = (c(hw) + types(h) p_{n-1}(w|h')) / (c(h) + types(h)),   p_0 = 1/256
 *
 * h holds the order-1 bytes before w in the same document, fewer at its start; h' is h without its
 * first byte; a context that train never had leaves p_{n-1}.  bos and eos take no part.
 *
 * @param order  1 .. K3_NGRAM_MAX_ORDER
 * Cost: order hash look-ups per byte; memory about 50 bytes per distinct string of up to order
 * bytes. Fails: K3_EINVAL (order, or a token above 255, with its position), K3_ENOMEM. Source:
 * Witten & Bell 1991, method C, interpolated.
 */
int k3_ngram_loss(const struct k3_k3t *train, const struct k3_k3t *eval, int order,
                  double *loss_nats);

#endif
