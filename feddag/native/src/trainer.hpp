// One client's work: a network (one or two encoders and a head), local SGD over given batches, evaluation.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>

#include "sequential.hpp"

namespace feddag {

template <class T> struct Samples {
    const T* x;
    const std::int64_t* y;
    const T* weight;  // per sample, or null
    std::int64_t count;
    Layout layout;
};

struct Schedule {
    const std::int64_t* order;
    const std::int64_t* batch_sizes;
    std::int64_t steps;
    int largest;
};

template <class T> class Network {
public:
    std::vector<std::unique_ptr<Sequential<T>>> encoders;
    std::unique_ptr<Sequential<T>> head;

    Network(const std::vector<LayerSpec>& encoder, const std::vector<LayerSpec>* secondary,
            const std::vector<LayerSpec>& top, Layout sample, int batch)
        : batch_(batch) {
        int dropouts = 0;
        encoders.push_back(std::make_unique<Sequential<T>>("encoder", encoder, sample, batch, dropouts));
        if (secondary)
            encoders.push_back(std::make_unique<Sequential<T>>("secondary", *secondary, sample, batch, dropouts));
        for (const auto& e : encoders)
            if (!e->output_layout().flat)
                throw std::invalid_argument("An encoder must end with a vector: add Flatten.");
        Layout features = encoders[0]->output_layout();
        if (secondary) {
            const int count = features.elements() + encoders[1]->output_layout().elements();
            features = Layout{1, 1, count, count, 0, true};
        }
        head = std::make_unique<Sequential<T>>("head", top, features, batch, dropouts);
        if (!head->output_layout().flat || head->output_layout().elements() < 2)
            throw std::invalid_argument("A network must end with at least two class scores.");
        features_.resize(encoders.size());
    }

    int classes() const { return head->output_layout().elements(); }
    int batch() const { return batch_; }

    template <class Work> void for_each_part(Work work) {
        for (auto& e : encoders) work(*e);
        work(*head);
    }

    // Class scores of one batch, into head->output().
    void forward(const Samples<T>& data, const std::int64_t* order, const Pass& pass) {
        encode(data, order, pass);
        head->forward(pass);
    }

    // What the encoders make of one batch, into head->input().
    void encode(const Samples<T>& data, const std::int64_t* order, const Pass& pass) {
        for (std::size_t e = 0; e < encoders.size(); e++) {
            if (features_[e].size()) {
                copy_features(e, order, pass.batch);
                continue;
            }
            gather(data, order, pass.batch, *encoders[e]);
            encoders[e]->forward(pass);
        }
        concatenate(pass.batch);
    }

    void backward(const Pass& pass, const Optimizer& sgd) {
        bool needed = false;
        for (auto& e : encoders) needed = needed || e->trainable;
        head->backward(pass, sgd, needed);
        if (!needed) return;
        split_grad(pass.batch);
        for (auto& e : encoders)
            if (e->trainable) e->backward(pass, sgd, false);
    }

    // The features of a frozen encoder do not change during training: they are computed once for each scheduled sample.
    void remember_frozen_features(const Samples<T>& data, const Schedule& schedule) {
        std::int64_t total = 0;
        for (std::int64_t s = 0; s < schedule.steps; s++) total += schedule.batch_sizes[s];
        std::vector<std::int64_t> wanted(schedule.order, schedule.order + total);
        std::sort(wanted.begin(), wanted.end());
        wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
        for (std::size_t e = 0; e < encoders.size(); e++) {
            Sequential<T>& part = *encoders[e];
            if (part.trainable) continue;
            const std::size_t size = part.output_layout().size();
            Buffer<T> features(data.count * size);
            for (std::size_t first = 0; first < wanted.size(); first += batch_) {
                Pass pass;
                pass.batch = int(std::min<std::size_t>(batch_, wanted.size() - first));
                gather(data, &wanted[first], pass.batch, part);
                part.forward(pass);
                for (int q = 0; q < pass.batch; q++)
                    std::copy_n(part.output() + q * size, size, &features[wanted[first + q] * size]);
            }
            features_[e] = std::move(features);
        }
    }

private:
    void gather(const Samples<T>& data, const std::int64_t* order, int batch, Sequential<T>& part) {
        const Layout &from = data.layout, &to = part.input_layout();
        const std::size_t row = std::size_t(from.w) * from.stored;
        for (int q = 0; q < batch; q++)
            for (int y = 0; y < from.h; y++)
                std::copy_n(data.x + order[q] * from.elements() + y * row, row,
                            part.input() + q * to.size() + to.at(y, 0));
    }
    void copy_features(std::size_t e, const std::int64_t* order, int batch) {
        const std::size_t size = encoders[e]->output_layout().size();
        for (int q = 0; q < batch; q++)
            std::copy_n(&features_[e][order[q] * size], size, encoders[e]->output() + q * size);
    }

    // One encoder: the head reads its output as it lies. Two: side by side in PyTorch's order (channel, row, column).
    void concatenate(int batch) {
        if (encoders.size() == 1) {
            std::copy_n(encoders[0]->output(), batch * head->input_layout().size(), head->input());
            return;
        }
        for_each_feature(
            batch, [](T& joined, T& own) { joined = own; }, head->input(),
            [](Sequential<T>& e) { return e.output(); });
    }
    void split_grad(int batch) {
        if (encoders.size() == 1) {
            std::copy_n(head->input_grad(), batch * head->input_layout().size(), encoders[0]->output_grad());
            return;
        }
        for_each_feature(
            batch, [](T& joined, T& own) { own = joined; }, head->input_grad(),
            [](Sequential<T>& e) { return e.output_grad(); });
    }
    template <class Work, class Side> void for_each_feature(int batch, Work work, T* joined, Side side) {
        for (int q = 0; q < batch; q++) {
            T* feature = joined + q * head->input_layout().size();
            for (auto& e : encoders) {
                const Layout& m = e->output_layout();
                T* own = side(*e) + q * m.size();
                for (int c = 0; c < m.c; c++)
                    for (int y = 0; y < m.h; y++)
                        for (int x = 0; x < m.w; x++) work(*feature++, own[m.at(y, x) + c]);
            }
        }
    }

    int batch_;
    std::vector<Buffer<T>> features_;  // of frozen encoders, by sample
};

// Cross-entropy of one row of scores; `grad` (may be null) receives its gradient times `factor`.
template <class T> double cross_entropy(const T* scores, int classes, std::int64_t label, T factor, T* grad) {
    const T top = *std::max_element(scores, scores + classes);
    T sum = 0;
    for (int c = 0; c < classes; c++) {
        const T e = std::exp(scores[c] - top);
        sum += e;
        if (grad) grad[c] = e;
    }
    if (grad) {
        for (int c = 0; c < classes; c++) grad[c] *= factor / sum;
        grad[label] -= factor;
    }
    return std::log(double(sum)) + double(top) - double(scores[label]);
}

// The mean loss of the batch just computed (weighted when samples have weights) and the gradient of its scores.
template <class T> double batch_loss(Network<T>& net, const Samples<T>& data, const std::int64_t* order, int batch) {
    const int stride = int(net.head->output_layout().size()), classes = net.classes();
    double total = 0, loss = 0;
    for (int q = 0; q < batch; q++) total += data.weight ? double(data.weight[order[q]]) : 1.0;
    for (int q = 0; q < batch; q++) {
        const double weight = data.weight ? double(data.weight[order[q]]) : 1.0;
        const double share = total > 0 ? weight / total : 0;  // a batch without weight teaches nothing
        T* grad = net.head->output_grad() + q * stride;
        loss += share * cross_entropy(net.head->output() + q * stride, classes, data.y[order[q]], T(share), grad);
        std::fill(grad + classes, grad + stride, T(0));
    }
    return loss;
}

template <class T> void prepare(Network<T>& net, const Optimizer& sgd) {
    net.for_each_part([&](Sequential<T>& part) {
        if (!part.trainable) return;
        part.for_each_param([&](Param<T>& p) {
            if (!p.updated_in_backward || sgd.clip > 0) p.grad = Buffer<T>(p.value.size());
            if (sgd.momentum != 0) p.velocity = Buffer<T>(p.value.size());
        });
    });
}

// Scales all gradients so that their common norm is at most `clip`, as torch.nn.utils.clip_grad_norm_ does. The pull
// towards the anchor belongs to the loss, so it is added before.
template <class T> void clip_grads(Network<T>& net, const Optimizer& sgd) {
    double squares = 0;
    const auto each = [&](auto work) {
        net.for_each_part([&](Sequential<T>& part) {
            if (part.trainable) part.for_each_param(work);
        });
    };
    each([&](Param<T>& p) {
        for (std::size_t i = 0; i < p.grad.size(); i++) {
            if (p.anchor.size()) p.grad[i] += p.proximal * (p.value[i] - p.anchor[i]);
            squares += double(p.grad[i]) * double(p.grad[i]);
        }
    });
    const T factor = T(std::min(1.0, sgd.clip / (std::sqrt(squares) + 1e-6)));
    each([&](Param<T>& p) {
        for (std::size_t i = 0; i < p.grad.size(); i++) p.grad[i] *= factor;
    });
}

// The whole of a client's local training; losses[s] is the loss of step s before its update.
template <class T> void train(Network<T>& net, const Samples<T>& data, const Schedule& schedule, const Optimizer& sgd,
                              Key key, double* losses) {
    prepare(net, sgd);
    net.for_each_part([](Sequential<T>& part) { part.refresh(); });
    net.remember_frozen_features(data, schedule);
    const std::int64_t* order = schedule.order;
    for (std::int64_t step = 0; step < schedule.steps; step++) {
        Pass pass;
        pass.batch = int(schedule.batch_sizes[step]);
        pass.training = true;
        pass.step = std::uint64_t(step);
        pass.key = key;
        net.forward(data, order, pass);
        losses[step] = batch_loss(net, data, order, pass.batch);
        net.backward(pass, sgd);
        if (sgd.clip > 0) clip_grads(net, sgd);
        net.for_each_part([&](Sequential<T>& part) {
            if (!part.trainable) return;
            part.for_each_param([&](Param<T>& p) {
                if (p.grad.size()) p.sgd_step(sgd, 0, p.value.size(), p.grad.data());
            });
            part.refresh();
        });
        order += pass.batch;
    }
}

// Calls work(first sample, pass) for one batch after the other, encoded without dropout.
template <class T, class Work> void encode_all(Network<T>& net, const Samples<T>& data, Work work) {
    net.for_each_part([](Sequential<T>& part) { part.refresh(); });
    std::vector<std::int64_t> order(net.batch());
    for (std::int64_t first = 0; first < data.count; first += net.batch()) {
        Pass pass;
        pass.batch = int(std::min<std::int64_t>(net.batch(), data.count - first));
        for (int q = 0; q < pass.batch; q++) order[q] = first + q;
        net.encode(data, order.data(), pass);
        work(first, pass);
    }
}

// Calls work(sample, its scores) for all samples of a batch that has been encoded.
template <class T, class Work> void score(Sequential<T>& head, std::int64_t first, const Pass& pass, Work work) {
    head.forward(pass);
    for (int q = 0; q < pass.batch; q++) work(first + q, head.output() + q * head.output_layout().size());
}

}  // namespace feddag
