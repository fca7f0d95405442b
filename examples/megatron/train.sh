#!/bin/bash
# Llama 3 8B on 8 nodes of 8 H100 with Megatron-LM, as it is started on each node: NODE_RANK and MASTER_ADDR are set.
torchrun --nnodes 8 --nproc-per-node 8 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port 6000 \
    pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --kv-channels 128 --swiglu --normalization RMSNorm \
    --disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 \
    --position-embedding-type rope --rotary-base 500000 \
    --seq-length 8192 --max-position-embeddings 8192 --padded-vocab-size 128256 \
    --micro-batch-size 1 --global-batch-size 256 \
    --tensor-model-parallel-size 2 --sequence-parallel --bf16 --attention-backend flash \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --train-iters 1000 --lr 3e-4 --lr-warmup-iters 100 --weight-decay 0.1 --clip-grad 1.0 \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B \
    --data-path $DATA_PATH --split 99,1,0 --log-interval 1 --log-throughput
